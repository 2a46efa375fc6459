"""Chat messages in the forms of other projects, read into one form."""

import json
from collections.abc import Sequence
from typing import Any

from temper.envs.core.null_padding import strip_nulls, strip_padding
from temper.envs.core.row_fields import MESSAGE_FIELDS, is_given, quote_value, refuse_fields
from temper.envs.core.task import Message, Tool
from temper.envs.core.turn_text import to_writable

SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
ROLES = {
    SYSTEM: SYSTEM,
    "developer": SYSTEM,
    USER: USER,
    "human": USER,
    ASSISTANT: ASSISTANT,
    "gpt": ASSISTANT,
    TOOL: TOOL,
    "observation": TOOL,
    "function": TOOL,
    "function_response": TOOL,
}
"""The role of each name that OpenAI, ShareGPT and LLaMA-Factory use."""
CALLER = "function_call"
"""ShareGPT's role of an assistant's message whose text is a call as JSON."""
TEXT_TYPES = ("text", "input_text", "output_text")
"""Types of content parts that hold text."""
SYSTEM_COLUMNS = ("system", "system_prompt")
"""Columns of a row with the text of its first message."""
TRAIN = "train"
FLAGS = (TRAIN, "loss", "loss_mask", "trainable", "weight")
"""Fields that mark a message as trained or not. An untrained message keeps `train: False`."""


def check_messages(row: dict[str, Any], *, name: str = "messages") -> list[Message]:
    """Return the messages in a field of a row. Raise `ValueError` with the offending value for an invalid one."""
    return read_messages(row.get(name), name=name, tools=check_tools(row))


def check_tools(row: dict[str, Any]) -> tuple[Tool, ...]:
    """Return the tools of a row, a list or its JSON text, without null fields. Raise `ValueError` for invalid ones."""
    tools = row.get("tools") or []
    listed = from_json(tools)
    if not isinstance(listed, list) or not all(_is_named(tool) or _has_function(tool) for tool in listed):
        raise ValueError(f"`tools` must be a list of objects with `function` and its `name`, not {quote_value(tools)}")
    return tuple(strip_nulls(tool) for tool in listed)


def read_messages(value: Any, *, name: str, tools: Sequence[Tool] = ()) -> list[Message]:
    """Return the messages of a list or of its JSON text. Each has `role`, `content` and its other fields that are not null.

    Arguments of calls become objects. Nulls that padding left in them are removed by the schemas of `tools`. Raise
    `ValueError` with the offending value.
    """
    given = from_json(value)
    if not isinstance(given, list) or not given:
        raise ValueError(f"`{name}` must be a list of objects with `role` and `content`, not {quote_value(value)}")
    try:
        is_text = to_writable(given) == given
    except ValueError as error:
        raise ValueError(f"`{name}` can't be kept as JSON: {error} in {quote_value(given)}") from error
    if not is_text:
        raise ValueError(f"`{name}` contain half a surrogate pair, which is invalid text: {quote_value(given)}")
    return [_message(one, name, tools) for one in given]


def is_messages(value: Any) -> bool:
    """Return whether a value is a list of messages, or the JSON text of one with known roles. Other JSON is a text."""
    if not isinstance(value, str):
        return isinstance(value, list) and bool(value) and all(_is_message(one) for one in value)
    read = from_json(value) if value.lstrip().startswith("[") else []
    return is_messages(read) and all(one.get("role", one.get("from")) in (*ROLES, CALLER) for one in read)


def read_prompt(value: Any, *, name: str) -> list[Message]:
    """Return the messages of a prompt. Raise `ValueError` if they do not end with the user's."""
    messages = read_messages(value, name=name)
    if messages[-1]["role"] != USER:
        raise ValueError(
            f"`{name}` must be a text, or messages that end with the user's, not {quote_value(messages[-1])}"
        )
    return [{key: inner for key, inner in message.items() if key != TRAIN} for message in messages]


def with_system(messages: Sequence[Message], row: dict[str, Any]) -> list[Message]:
    """Return messages that begin with the system text of the row's column, if it has one.

    Raise `ValueError` if they begin with another system text.
    """
    made = list(messages)
    for name in SYSTEM_COLUMNS:
        text = row.get(name)
        if not is_given(text):
            continue
        if not isinstance(text, str):
            raise ValueError(f"`{name}` must be a text, not {quote_value(text)}")
        made = join_system([{"role": SYSTEM, "content": text}], made, name=f"`{name}`")
    return made


def join_system(head: Sequence[Message], messages: Sequence[Message], *, name: str) -> list[Message]:
    """Return `head` and `messages` as one dialogue with at most one system text, which comes first.

    Raise `ValueError` if both begin with system texts that differ. `name` names the head there.
    """
    if not head or not messages or messages[0]["role"] != SYSTEM:
        return [*head, *messages]
    system, *rest = messages
    if head[0]["role"] != SYSTEM:
        return [system, *head, *rest]
    if head[0]["content"].strip() != system["content"].strip():
        raise ValueError(
            f"{name} has the system text {quote_value(head[0]['content'])}, which contradicts "
            f"{quote_value(system['content'])}; remove one of them"
        )
    return [*head, *rest]


def text_of(content: Any) -> str:
    """Return the text of a message's content: a text, or a list of parts, which are joined.

    Raise `ValueError` with the type of a part that is no text.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"`content` must be text or a list of text parts, not {quote_value(content)}")
    return "".join(_part(part) for part in content)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in (None, *TEXT_TYPES) or not isinstance(part.get("text"), str):
        raise ValueError(
            f"`content` has a part of the type {kind!r}, {quote_value(part)}, but only text is trained; remove the part or "
            f"the row"
        )
    return str(part["text"])


def _message(given: Any, name: str, tools: Sequence[Tool]) -> Message:
    message = {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else {}
    for one, other in (("role", "from"), ("content", "value")):
        if one in message and other in message:
            raise ValueError(f"a message has `{one}` and `{other}`, {quote_value(given)}; remove one of them")
    refuse_fields(message, MESSAGE_FIELDS, "a message")
    role = message.pop("role" if "role" in message else "from", None)
    content = message.pop("content" if "content" in message else "value", None)
    calls = message.pop("tool_calls", [])
    if role == CALLER:
        role, calls, content = ASSISTANT, _calls_in(content), ""
    if not isinstance(role, str) or (content is None and not calls):
        raise ValueError(
            f"`{name}` must hold objects with `role` and `content`, which must be text, not {quote_value(given)}"
        )
    if role not in ROLES:
        raise ValueError(f"a message has the role {role!r}; the roles are {', '.join((*ROLES, CALLER))}")
    trained = _trained(message)
    if trained and ROLES[role] != ASSISTANT:
        raise ValueError(
            f"a message of the role {role!r} is marked as trained, but only the assistant's are; unmark it"
        )
    if not isinstance(message.get("reasoning_content", ""), str):
        raise ValueError(f"`reasoning_content` must be text, not {quote_value(message['reasoning_content'])}")
    message = {"role": ROLES[role], "content": "" if content is None else text_of(content), **message}
    if calls:
        message["tool_calls"] = [_call(call, tools) for call in calls]
    return message | {TRAIN: False} if trained is False else message


def _trained(message: Message) -> bool | None:
    """Remove the flags of a message. Return whether it is to be trained, or None if it has no flag."""
    flags = {name: message.pop(name) for name in FLAGS if name in message}
    for name, value in flags.items():
        if value not in (0, 1):
            raise ValueError(
                f"a message has `{name}`: {quote_value(value)}; set 0 or false to leave it untrained, 1 or true to train it"
            )
    if len({bool(value) for value in flags.values()}) > 1:
        raise ValueError(
            f"a message has the flags {quote_value(flags)}, which contradict each other; remove one of them"
        )
    return next((bool(value) for value in flags.values()), None)


def _calls_in(text: Any) -> list[dict[str, Any]]:
    """Return the calls of ShareGPT's `function_call`: the JSON of one, or of a list."""
    read = from_json(text)
    listed = read if isinstance(read, list) else [read]
    if not listed or not all(_is_named(one) for one in listed):
        raise ValueError(f"`{CALLER}` must be the JSON of a call with `name` and `arguments`, not {quote_value(text)}")
    return [{"type": "function", "function": one} for one in listed]


def _call(call: Any, tools: Sequence[Tool]) -> dict[str, Any]:
    """Return a tool call with its arguments as an object. Some formats write them as text, which has no padding."""
    if not _has_function(call):
        raise ValueError(f"a tool call must have `function` with `name` and `arguments`, not {quote_value(call)}")
    function = {key: value for key, value in call["function"].items() if value is not None}
    given = function.get("arguments", {})
    read = from_json(given) if isinstance(given, str) else strip_padding(given, _parameters(function["name"], tools))
    if not isinstance(read, dict):
        raise ValueError(f"the arguments of a tool call must be an object, not {quote_value(given)}")
    return {key: value for key, value in call.items() if value is not None} | {
        "function": function | {"arguments": read}
    }


def _parameters(name: str, tools: Sequence[Tool]) -> Any:
    functions = (tool.get("function", tool) for tool in tools)
    return next((one.get("parameters") for one in functions if one["name"] == name), None)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(value.get(name), str) for name in ("role", "from"))


def _has_function(value: Any) -> bool:
    return isinstance(value, dict) and _is_named(value.get("function"))


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str)


def from_json(value: Any) -> Any:
    """Return the value of a JSON text, or None if it is invalid. Return any other value unchanged."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None

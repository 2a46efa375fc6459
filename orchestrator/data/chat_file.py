"""Rows of chats as dialogues. Each is checked for messages and tools that a chat template would omit or misformat."""

import json
from typing import Any

from temper.envs.core.task import CHAT, Message, Task, Tool
from temper.envs.core.thinking_mode import LOW_EFFORT, OFF, UNLIMITED, Thinking
from temper.envs.core.turn_text import CLOSE_THINKING, OPEN_THINKING, answer_text, writable
from temper.envs.data.config import DataConfig, OnError
from temper.orchestrator.data.chat_data import Dialogue, has_reasoning
from temper.orchestrator.data.row_intake import RowIntake, ShuffledRows

ROLES = ("system", "user", "assistant", "tool")
UNREAD = ("function_call", "reasoning", "thinking")
"""Fields of other formats, which a template would omit."""
SHOWN = 60
"""Characters of an offending value in a message."""


def checked_messages(row: dict[str, Any], *, name: str = "messages") -> list[Message]:
    """Return the messages in a field of a row. Raise `ValueError` with the offending value for an invalid one."""
    messages = row.get(name)
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"`{name}` must be a list of objects with `role` and `content`, not {shown(messages)}")
    if writable(messages) != messages:
        raise ValueError(f"`{name}` contain half a surrogate pair, which is invalid text: {shown(messages)}")
    return [_checked(message) for message in messages]


def checked_tools(row: dict[str, Any]) -> tuple[Tool, ...]:
    """Return the tools of a row, a list or its JSON text. Raise `ValueError` for invalid ones."""
    tools = row.get("tools") or []
    listed = _read(tools) if isinstance(tools, str) else tools
    if not isinstance(listed, list) or not all(_is_named(tool) or _has_function(tool) for tool in listed):
        raise ValueError(f"`tools` must be a list of objects with `function` and its `name`, not {shown(tools)}")
    return tuple(listed)


def parse_assistant_message(
    message: Message, *, reads_reasoning: bool, name: str = "an assistant's message"
) -> Message:
    """Return an assistant's message. Its content before the closing tag becomes its reasoning.

    Without `reads_reasoning` the tags are plain text. Raise `ValueError` for reasoning that is not opened and closed once or
    that the template would omit, and for an empty message.
    """
    text, given = message["content"], message.get("reasoning_content") or ""
    if given and not reads_reasoning:
        raise ValueError(f"the model's chat template would omit the reasoning {shown(given)}")
    if reads_reasoning and (_is_tagged(given) or _is_tagged(text)):
        reasoning, closed, answer = text.partition(CLOSE_THINKING)
        reasoning = reasoning.strip().removeprefix(OPEN_THINKING).strip()
        if given or not closed or _is_tagged(reasoning) or _is_tagged(answer):
            raise ValueError(f"the reasoning of {name} must be opened and closed once, not {shown(given or text)}")
        message = {**message, "reasoning_content": reasoning, "content": answer_text(answer)}
    if not message["content"].strip() and not message.get("tool_calls"):
        raise ValueError(f"{name} is empty: {shown(message)}")
    return message


def shown(value: Any) -> str:
    """Return the beginning of an offending value."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _checked(message: Any) -> Message:
    readable = isinstance(message, dict) and isinstance(message.get("role"), str)
    if not readable or not ("content" in message or message.get("tool_calls")):
        raise ValueError(f"`messages` must hold objects with `role` and `content`, not {shown(message)}")
    if message["role"] not in ROLES:
        raise ValueError(f"a message has the role {message['role']!r}; the roles are {', '.join(ROLES)}")
    unread = [name for name in UNREAD if message.get(name)]
    if unread:
        raise ValueError(
            f"`{unread[0]}` of a message would be omitted; use `reasoning_content` for reasoning, `tool_calls` for calls"
        )
    if message.get("weight", 1) != 1:
        raise ValueError(f"a message has the weight {message['weight']}, but all answers of a row are trained")
    calls = message.get("tool_calls") or []
    checked = {**message, "content": "" if calls and message.get("content") is None else message["content"]}
    for name in ("content", "reasoning_content"):
        if not isinstance(checked.get(name) or "", str):
            raise ValueError(f"`{name}` must be text, not {shown(checked[name])}")
    if checked["content"] is None:
        raise ValueError(f"`content` must be text, not None in {shown(message)}")
    return checked | {"tool_calls": [_call(call) for call in calls]} if calls else checked


def _call(call: Any) -> dict[str, Any]:
    """Return a tool call with its arguments as an object. Some formats write them as text."""
    if not _has_function(call):
        raise ValueError(f"a tool call must have `function` with `name` and `arguments`, not {shown(call)}")
    arguments = call["function"].get("arguments")
    read = _read(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(read, dict):
        raise ValueError(f"the arguments of a tool call must be an object, not {shown(arguments)}")
    return {**call, "function": call["function"] | {"arguments": read}}


def _has_function(value: Any) -> bool:
    return isinstance(value, dict) and _is_named(value.get("function"))


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str)


def _is_tagged(text: str) -> bool:
    return OPEN_THINKING in text or CLOSE_THINKING in text


def _read(text: str) -> Any:
    """Return the value of a JSON text, or None if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


EFFORTS = (None, "low", "medium", "high")


def chat_rows(data: DataConfig, intake: RowIntake, *, on_error: OnError, seed: int) -> ShuffledRows[Dialogue]:
    """Read rows of data with `messages`. `intake` tokenises each row once.

    If `on_error` is "raise", raise `ValueError` with the place of the first unusable row.
    """

    def parse(row: dict[str, Any], number: int) -> Dialogue:
        dialogue = parse_chat(row, number, reads_reasoning=intake.reads_reasoning)
        intake.require_fits(dialogue)
        return dialogue

    return intake.shuffled(data, parse, on_error=on_error, seed=f"{seed}/epoch")


def parse_chat(row: dict[str, Any], number: int, *, reads_reasoning: bool = True) -> Dialogue:
    """Read one row: `{"messages": [...], "tools": [...]}`. The messages before the first answer are the prompt.

    A first message of the assistant belongs to the prompt. Without `reads_reasoning` the tags are plain text. Raise
    `ValueError` for a malformed row.
    """
    messages = [
        parse_assistant_message(message, reads_reasoning=reads_reasoning) if message["role"] == "assistant" else message
        for message in checked_messages(row)
    ]
    roles = [message["role"] for message in messages]
    if "assistant" not in roles[1:]:
        raise ValueError(f"`messages` needs an assistant's message after the prompt; its roles are {roles}")
    first = roles.index("assistant", 1)
    task = Task(
        env=CHAT,
        key=str(number),
        messages=tuple(messages[:first]),
        spec={},
        tools=checked_tools(row),
        thinking=_thinking_of(row, messages[first:]),
    )
    return Dialogue(task=task, reply=tuple(messages[first:]))


def _thinking_of(row: dict[str, Any], reply: list[Message]) -> Thinking:
    effort = row.get("reasoning_effort")
    if effort not in EFFORTS:
        raise ValueError(f"`reasoning_effort` is {shown(effort)}; it must be one of {', '.join(EFFORTS[1:])}")
    if not any(map(has_reasoning, reply)):
        return OFF
    return LOW_EFFORT if effort == "low" else UNLIMITED

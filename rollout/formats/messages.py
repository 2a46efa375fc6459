"""Messages in the form that a chat template needs, and probes for its format."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from temper.envs.core.task import Message, Tool
from temper.rollout.formats.turn_format import TurnFormat

TEXT_MARK, REASONING_MARK = "temper-mark", "temper-thought"
"""Placeholders for an assistant's text and reasoning."""
REASONING = "reasoning_content"
"""Field of Temper's messages for reasoning."""
USER_MESSAGE: Message = {"role": "user", "content": "-"}
ASSISTANT_MESSAGE: Message = {"role": "assistant", "content": TEXT_MARK}
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Fields in which templates read reasoning."""
PROBE_TOOLS: tuple[Tool, ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "-",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "-"},
                    "count": {"type": "integer", "description": "-"},
                    "items": {"type": "array", "items": {"type": "string"}, "description": "-"},
                },
                "required": ["text", "count"],
            },
        },
    }
    for name in ("probe_first", "probe_second")
)
PROBE_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("probe_first", {"text": TEXT_MARK, "count": 7}),
    ("probe_second", {"text": "75001", "count": -1, "items": ["a", "b c"]}),
)
"""Two calls. A number as text shows whether argument types are kept."""
SYSTEM_TEXT_MODES = (("/think", "/no_think"),)
"""System texts that switch thinking on and off, for templates without `thinking_variables`."""


def thinking_variables(*, thinks: bool) -> dict[str, bool]:
    """Return the template variables that switch thinking, of Qwen 3 and most others, and of DeepSeek V3.1."""
    return {"enable_thinking": thinks, "thinking": thinks}


def mode_of_variables(variables: Mapping[str, Any]) -> bool | None:
    """Return whether template variables switch thinking on or off. None if they set no mode."""
    names = thinking_variables(thinks=True)
    return next((variables[name] for name in names if isinstance(variables.get(name), bool)), None)


def call_id(number: int) -> str:
    """Return a call id. Some templates accept only nine letters and digits."""
    return f"call{number:05d}"


def probe_message(count: int, *, as_text: bool = False) -> Message:
    """Return an assistant message with `count` probe calls. With `as_text` their arguments are JSON text."""
    calls = []
    for number, (name, arguments) in enumerate(PROBE_CALLS[:count]):
        given = json.dumps(arguments) if as_text else arguments
        calls.append({"type": "function", "id": call_id(number), "function": {"name": name, "arguments": given}})
    return {"role": "assistant", "content": "", "tool_calls": calls}


def tool_answers(count: int) -> list[Message]:
    """Return the tools' answers to `count` probe calls."""
    return [
        {"role": "tool", "tool_call_id": call_id(number), "name": PROBE_CALLS[number][0], "content": "-"}
        for number in range(count)
    ]


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] = (),
    thinks: bool = True,
    open_turn: bool = False,
) -> str | None:
    """Return the rendered messages, or None if the template fails."""
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                add_generation_prompt=open_turn,
                **thinking_variables(thinks=thinks),
                tokenize=False,
            )
        )
    except (TemplateError, TypeError, KeyError, AttributeError, ValueError):
        return None


def strip_common_prefix(text: str, other: str) -> str:
    """Return `text` without the prefix that it shares with `other`."""
    count = next(
        (number for number, (one, two) in enumerate(zip(text, other, strict=False)) if one != two),
        min(len(text), len(other)),
    )
    return text[count:]


def token_at(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Return the single token at the start of a text, after white space, or ""."""
    bare = text.lstrip()
    known = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}
    return max((token for token in known if token.strip() and bare.startswith(token)), key=len, default="")


def prepare_messages(messages: Sequence[Message], form: TurnFormat) -> list[Message]:
    """Return messages with reasoning in the template's field, and with ids that tie answers to calls."""
    done: list[Message] = []
    calls: list[dict[str, Any]] = []
    answered = 0
    for message in messages:
        if message.get("role") == "assistant":
            made = _move_reasoning(message, form)
            calls = [_call(call, number, form) for number, call in enumerate(message.get("tool_calls") or ())]
            answered = 0
            changed = {
                key: value for key, value in made.items() if key != "tool_calls"
            }  # some templates refuse an empty list
            done.append({**changed, "tool_calls": calls} if calls else changed)
        elif message.get("role") == "tool" and calls:
            done.append(_answer(message, calls[min(answered, len(calls) - 1)]))
            answered += 1
        else:
            done.append(message)
    return done


def set_mode(messages: Sequence[Message], text: str) -> list[Message]:
    """Return messages whose system message contains `text`, which sets the mode."""
    if not text:
        return list(messages)
    if not messages or messages[0].get("role") != "system":
        return [{"role": "system", "content": text}, *messages]
    return [with_line(messages[0], text), *messages[1:]]


def with_line(message: Message, text: str, *, kind: str = "text") -> Message:
    """Return a message with one more line. Its content may be text, or a list of parts. Then `kind` is the new part's type."""
    content = message.get("content") or ""
    changed = [*content, {"type": kind, "text": text}] if isinstance(content, list) else f"{content}\n{text}"
    return {**message, "content": changed}


def _move_reasoning(message: Message, form: TurnFormat) -> Message:
    if REASONING not in message or form.reasoning_field in (None, REASONING):
        return message
    moved = {key: value for key, value in message.items() if key != REASONING}
    return {**moved, form.reasoning_field: message[REASONING]} if message[REASONING] else moved


def _call(call: dict[str, Any], number: int, form: TurnFormat) -> dict[str, Any]:
    made = {"type": "function", "id": call_id(number), **call}
    function = made.get("function")
    if form.arguments_as_text and isinstance(function, dict) and not isinstance(function.get("arguments"), str):
        made["function"] = {**function, "arguments": json.dumps(function.get("arguments") or {})}
    return made


def _answer(message: Message, call: dict[str, Any]) -> Message:
    function = call.get("function")
    name = function.get("name", "") if isinstance(function, dict) else ""
    return {"tool_call_id": call["id"], "name": name, **message}


def one_call_a_turn(messages: Sequence[Message]) -> list[Message]:
    """Return messages with one call per turn: each call follows the answer to the one before.

    The reasoning and the text stay with the first call.
    """
    done: list[Message] = []
    waiting: list[dict[str, Any]] = []
    asking: Message = {}
    for number, message in enumerate(messages):
        calls = message.get("tool_calls") or []
        answers = messages[number + 1 : number + 1 + len(calls)]
        answered = len(answers) == len(calls) and all(answer.get("role") == "tool" for answer in answers)
        if message.get("role") == "assistant" and len(calls) > 1 and answered:
            done.append({**message, "tool_calls": calls[:1]})
            waiting = list(calls[1:])
            asking = {key: value for key, value in message.items() if key in ("role", "train")}
            continue
        done.append(message)
        if message.get("role") == "tool" and waiting:
            done.append(asking | {"content": "", "tool_calls": [waiting.pop(0)]})
    return done

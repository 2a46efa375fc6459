"""Messages as a family's chat template wants them: the field of a thought, ids of calls, arguments as text, one call a turn."""

import json
from collections.abc import Sequence
from typing import Any

from temper.envs.core.task import Message
from temper.rollout.formats.probe import call_id
from temper.rollout.formats.turn_format import TurnFormat

THOUGHT = "reasoning_content"
"""The field in which messages of ours have their thought."""


def prepared(messages: Sequence[Message], form: TurnFormat) -> list[Message]:
    """Return messages with what the template needs: thoughts where it looks for them, ids that tie answers to calls."""
    done: list[Message] = []
    calls: list[dict[str, Any]] = []
    answered = 0
    for message in messages:
        if message.get("role") == "assistant":
            made = _thought_moved(message, form)
            calls = [_call(call, number, form) for number, call in enumerate(message.get("tool_calls") or ())]
            answered = 0
            said = {
                key: value for key, value in made.items() if key != "tool_calls"
            }  # some templates refuse an empty list
            done.append({**said, "tool_calls": calls} if calls else said)
        elif message.get("role") == "tool" and calls:
            done.append(_answer(message, calls[min(answered, len(calls) - 1)]))
            answered += 1
        else:
            done.append(message)
    return done


def in_mode(messages: Sequence[Message], text: str) -> list[Message]:
    """Return messages whose first, the system's, says in what mode they are answered; as they are where `text` is empty."""
    if not text:
        return list(messages)
    if not messages or messages[0].get("role") != "system":
        return [{"role": "system", "content": text}, *messages]
    return [with_line(messages[0], text), *messages[1:]]


def with_line(message: Message, text: str) -> Message:
    """Return a message with one more line at its end, be its content text or a list of parts."""
    content = message["content"]
    said = [*content, {"type": "text", "text": text}] if isinstance(content, list) else f"{content}\n{text}"
    return {**message, "content": said}


def _thought_moved(message: Message, form: TurnFormat) -> Message:
    if THOUGHT not in message or form.thought_field in (None, THOUGHT):
        return message
    moved = {key: value for key, value in message.items() if key != THOUGHT}
    return {**moved, form.thought_field: message[THOUGHT]} if message[THOUGHT] else moved


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
    """Return messages in which no turn that is answered has several calls: each is made after the one before it was answered.

    The thought and the text of such a turn stand with its first call.
    """
    done: list[Message] = []
    waiting: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        calls = message.get("tool_calls") or []
        answers = messages[number + 1 : number + 1 + len(calls)]
        answered = len(answers) == len(calls) and all(answer.get("role") == "tool" for answer in answers)
        if message.get("role") == "assistant" and len(calls) > 1 and answered:
            done.append({**message, "tool_calls": calls[:1]})
            waiting = list(calls[1:])
            continue
        done.append(message)
        if message.get("role") == "tool" and waiting:
            done.append({"role": "assistant", "content": "", "tool_calls": [waiting.pop(0)]})
    return done

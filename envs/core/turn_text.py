"""The text of one assistant turn: its thought, its answer, its tool calls. Pure functions.

A turn reads `thought </think> answer`; with thinking off it is the bare answer. A tool call is
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` in the answer; white space inside is free.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.core.task import Message, Tool

OPEN_THOUGHT, CLOSE_THOUGHT = "<think>", "</think>"
OPEN_CALL, CLOSE_CALL = "<tool_call>", "</tool_call>"
BLANK_LINES = re.compile(r"\A(?:[ \t\r]*\n)+")
CALL_BLOCK = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A well-formed tool call."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadCall:
    """A tool call that can't be read; `error` is what the model is told."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """A turn of the model, read once: `text` is all of it.

    `thought` is None where thinking is off. `readable` says whether thought and answer can be told apart; where they can't,
    the answer is empty and has no calls. `well_formed` is stricter: it forgives nothing that can still be read. `calls` are
    those of the answer in order.
    """

    text: str
    thought: str | None
    answer: str
    readable: bool
    well_formed: bool
    calls: tuple[Call | BadCall, ...]


def parse_turn(text: str, *, thinks: bool) -> ParsedTurn:
    """Read a turn: its thought, its answer and its calls, and whether each has the form that it should have."""
    thought, answer, readable = _split_thought(text, thinks=thinks)
    return ParsedTurn(
        text=text,
        thought=thought,
        answer=answer,
        readable=readable,
        well_formed=_thought_is_well_formed(text, thinks=thinks),
        calls=tuple(parse_calls(answer)),
    )


def _split_thought(text: str, *, thinks: bool) -> tuple[str | None, str, bool]:
    """Return a turn as (thought, answer, readable).

    With thinking on, the thought was opened by the prompt and must be closed; the answer follows the last closing.
    With thinking off there may be no thought. A turn that is not readable has an empty answer.
    """
    body = text.strip()
    if not thinks:
        if OPEN_THOUGHT in body or CLOSE_THOUGHT in body:
            return body, "", False
        return None, answer_text(text), True
    thought, closed, answer = body.removeprefix(OPEN_THOUGHT).rpartition(CLOSE_THOUGHT)
    if not closed or OPEN_THOUGHT in answer:
        return body, "", False
    return thought.strip(), answer_text(answer), True


def answer_text(text: str) -> str:
    """Return the text without blank lines around it; the first line keeps its indentation, which matters in a program."""
    return BLANK_LINES.sub("", text).rstrip()


def parse_calls(answer: str) -> list[Call | BadCall]:
    """Return every tool call of an answer in order, unreadable ones as `BadCall`."""
    return [_parse_block(body, closed=bool(end)) for body, end in CALL_BLOCK.findall(answer)]


def _parse_block(body: str, *, closed: bool) -> Call | BadCall:
    if not closed:
        return BadCall(error="error: tool call not closed")
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return BadCall(error="error: tool call is not JSON")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return BadCall(error="error: tool call has no name")
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return BadCall(error="error: arguments must be an object")
    return Call(name=call["name"], arguments=arguments)


def _thought_is_well_formed(text: str, *, thinks: bool) -> bool:
    """Return whether a turn has exactly one closing of its thought and no tag in the answer; none at all without thinking.

    This is stricter than `_split_thought`, which forgives what can still be read.
    """
    if not thinks:
        return OPEN_THOUGHT not in text and CLOSE_THOUGHT not in text
    body = text.lstrip().removeprefix(OPEN_THOUGHT)
    return body.count(CLOSE_THOUGHT) == 1 and OPEN_THOUGHT not in body


def calls_are_valid(calls: Sequence[Call | BadCall], tools: Sequence[Tool]) -> bool:
    """Return whether each call can be read, names one of the tools and gives the arguments that it requires."""
    known = {tool["function"]["name"]: tool["function"] for tool in tools}
    return all(
        isinstance(call, Call)
        and call.name in known
        and set(known[call.name].get("parameters", {}).get("required", ())) <= set(call.arguments)
        for call in calls
    )


def call_message(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return one entry of a message's `tool_calls`."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def turn_text(message: Message, *, thinks: bool) -> str:
    """Return the text that a model would sample to say `message`, the prompt having opened the thought."""
    calls = [OPEN_CALL + json.dumps(call["function"]) + CLOSE_CALL for call in message.get("tool_calls") or ()]
    answer = "".join((message["content"], *calls))
    return f"{message.get('reasoning_content') or ''}\n{CLOSE_THOUGHT}\n{answer}" if thinks else answer

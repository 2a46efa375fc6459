"""The text of one assistant turn: thinking, answer and tool calls. Pure functions.

A turn has the form `reasoning </think> answer`, or only the answer with thinking off. A tool call in the answer has the form
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, with any white space inside.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from temper.envs.core.task import Message, Tool
from temper.rewards.json_answers import NoJson, to_object

OPEN_THINKING, CLOSE_THINKING = "<think>", "</think>"
OPEN_CALL, CLOSE_CALL = "<tool_call>", "</tool_call>"
BLANK_LINES = re.compile(r"\A(?:[ \t\r]*\n)+")
CALL_BLOCK = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
CALL_END = re.compile(r"</tool_call>|(?=<tool_call>)|\Z")
JSON, JSON_SPACE = json.JSONDecoder(), re.compile(r"[ \t\n\r]*")
HALVES = re.compile("[\ud800-\udfff]")
"""Unpaired surrogates: JSON can contain one, UTF-8 can't encode it."""
DEEPEST = 64
"""Maximum nesting of lists and objects in the arguments of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """The tags that open and close the thinking."""

    opening: str
    closing: str


OWN_TAGS = Tags(opening=OPEN_THINKING, closing=CLOSE_THINKING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A well-formed tool call. `id` is the model's id of it, if its family names calls."""

    name: str
    arguments: dict[str, Any]
    id: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadCall:
    """An unreadable tool call. The model sees `error`."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """A parsed turn of the model. `text` is all of it.

    `reasoning` is None if thinking is off. `readable` is True if thinking and answer can be separated. Otherwise the answer
    is empty and has no calls. `well_formed` is stricter and tolerates no deviation. `calls` are the calls of the answer in
    order, also unreadable ones, and `content` is the answer without them. Environments grade `content` alone.
    """

    text: str
    reasoning: str | None
    answer: str
    content: str
    readable: bool
    well_formed: bool
    calls: tuple[Call | BadCall, ...]


def parse_turn(text: str, *, thinks: bool) -> ParsedTurn:
    """Parse a turn into thinking, answer and calls, and check the form of each."""
    parts = split_turn(text, OWN_TAGS, thinks=thinks)
    return ParsedTurn(
        text=text,
        reasoning=parts.reasoning,
        answer=parts.answer,
        content=remove_calls(parts.answer),
        readable=parts.readable,
        well_formed=parts.well_formed,
        calls=tuple(parse_calls(parts.answer)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnParts:
    """A turn before its calls are parsed. See `ParsedTurn`."""

    reasoning: str | None
    answer: str
    readable: bool
    well_formed: bool


def split_turn(text: str, tags: Tags | None, *, thinks: bool, opened: bool = True) -> TurnParts:
    """Separate thinking from answer. Without `tags` the model has no thinking, and the whole text is the answer.

    With thinking on, the thinking must be closed, and the answer follows the last closing tag. But if the model opens its
    thinking itself (not `opened` by the prompt), it may answer without any. With thinking off there may be no tag. If the
    turn is unreadable, its answer is empty. `well_formed` requires exactly one closing tag and no tag in the answer.
    """
    if tags is None:
        return TurnParts(reasoning=None, answer=answer_text(text), readable=True, well_formed=True)
    body = text.strip()
    tagged = tags.opening in body or tags.closing in body
    if not thinks or not (opened or tagged):
        reasoning = "" if thinks else None
        if tagged:
            return TurnParts(reasoning=body, answer="", readable=False, well_formed=False)
        return TurnParts(reasoning=reasoning, answer=answer_text(text), readable=True, well_formed=True)
    inner = body.removeprefix(tags.opening)
    reasoning, closed, answer = inner.rpartition(tags.closing)
    well_formed = inner.count(tags.closing) == 1 and tags.opening not in inner and (opened or inner != body)
    if not closed or tags.opening in answer:
        return TurnParts(reasoning=body, answer="", readable=False, well_formed=well_formed)
    return TurnParts(reasoning=reasoning.strip(), answer=answer_text(answer), readable=True, well_formed=well_formed)


def answer_text(text: str) -> str:
    """Return the text without surrounding blank lines. The first line keeps its indentation, which matters in a program."""
    return BLANK_LINES.sub("", text).rstrip()


def remove_calls(answer: str) -> str:
    """Return an answer without its calls, also unreadable ones."""
    kept, at = list[str](), 0
    for block in _call_blocks(answer):
        kept.append(answer[at : block.start])
        at = block.end
    return answer_text("".join((*kept, answer[at:])))


def parse_calls(answer: str) -> list[Call | BadCall]:
    """Return all tool calls of an answer in order, unreadable ones as `BadCall`."""
    return [_parse_block(block.body, closed=block.closed) for block in _call_blocks(answer)]


class _CallBlock(NamedTuple):
    """The place of a call in an answer, with its tags, and the text between them."""

    start: int
    end: int
    body: str
    closed: bool


def _call_blocks(answer: str) -> Iterator[_CallBlock]:
    """Yield the calls of an answer. Tags in the JSON of a call are part of its texts."""
    at = 0
    while (start := answer.find(OPEN_CALL, at)) >= 0:
        inside = start + len(OPEN_CALL)
        tag = CALL_END.search(answer, json_end(answer, inside))
        assert tag
        at = tag.end()
        yield _CallBlock(start=start, end=at, body=answer[inside : tag.start()], closed=bool(tag[0]))


def json_end(text: str, start: int) -> int:
    """Return the end of the JSON value at `start`, or `start` without one."""
    space = JSON_SPACE.match(text, start)
    try:
        return JSON.raw_decode(text, space.end() if space else start)[1]
    except (ValueError, RecursionError):
        return start


def _parse_block(body: str, *, closed: bool) -> Call | BadCall:
    if not closed:
        return BadCall(error="error: tool call not closed")
    call = _json_of(body)
    if isinstance(call, BadCall):
        return call
    return call_of(call.get("name"), call.get("arguments", {})) if isinstance(call, dict) else call_of(None, {})


def call_of(name: Any, arguments: Any, *, named: Any = "") -> Call | BadCall:
    """Return the call of a parsed name and arguments, with its id if the model gave one."""
    if not isinstance(name, str) or not name.strip():
        return BadCall(error="error: tool call has no name")
    if not isinstance(arguments, dict):
        return BadCall(error="error: arguments must be an object")
    try:
        given = to_writable(arguments)
    except ValueError as error:
        return BadCall(error=f"error: {error}")
    return Call(
        name=to_writable(name.strip()), arguments=given, id=to_writable(named) if isinstance(named, str) else ""
    )


def to_writable(value: Any, *, levels: int = DEEPEST) -> Any:
    """Return JSON data that UTF-8 can encode, with U+FFFD for unpaired surrogates.

    Raise `ValueError` for data nested deeper than `levels`, and for numbers that are not finite.
    """
    if isinstance(value, str):
        return HALVES.sub("\ufffd", value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the number {value} is not finite")
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        raise ValueError("lists and objects are nested too deeply")
    if isinstance(value, list):
        return [to_writable(inner, levels=levels - 1) for inner in value]
    return {to_writable(key): to_writable(inner, levels=levels - 1) for key, inner in value.items()}


def call_from_text(name: Any, arguments: str) -> Call | BadCall:
    read = _json_of(arguments)
    return read if isinstance(read, BadCall) else call_of(name, read)


def _json_of(text: str) -> Any:
    """Return the value of a JSON text, or a `BadCall` if it is invalid or has duplicate keys."""
    try:
        return json.loads(text, object_pairs_hook=to_object)
    except NoJson as error:
        return BadCall(error=f"error: {error}")
    except (ValueError, RecursionError):
        return BadCall(error="error: tool call is not JSON")


def has_valid_calls(calls: Sequence[Call | BadCall], tools: Sequence[Tool]) -> bool:
    """Return whether every call is readable, names one of the tools and has its required arguments."""
    known = {tool["function"]["name"]: tool["function"] for tool in tools}
    return all(
        isinstance(call, Call)
        and call.name in known
        and set(known[call.name].get("parameters", {}).get("required", ())) <= set(call.arguments)
        for call in calls
    )


def call_message(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def make_call_turn(calls: Iterable[tuple[str, dict[str, Any]]], *, reasoning: str = "", content: str = "") -> Message:
    """Return a turn of the model with these calls: names and arguments."""
    made = [call_message(name, arguments) for name, arguments in calls]
    return {"role": "assistant", "reasoning_content": reasoning, "content": content, "tool_calls": made}


def turn_text(message: Message, *, thinks: bool) -> str:
    """Return the sampled text of `message`, if the prompt opens the thinking."""
    calls = [OPEN_CALL + json.dumps(call["function"]) + CLOSE_CALL for call in message.get("tool_calls") or ()]
    answer = "".join((message["content"], *calls))
    return f"{message.get('reasoning_content') or ''}\n{CLOSE_THINKING}\n{answer}" if thinks else answer

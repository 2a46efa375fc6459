"""Extract the JSON value of an answer, and compare JSON values. Pure; bounded on any text.

The answer is the whole text if it is JSON, otherwise the content of a code fence. Several fences must hold the same value.
Fences of other languages are ignored. A fence ends at the end of a line, its own or the last one of the value. JSON follows
RFC 8259: no comments, no single quotes, no trailing commas, no `NaN` or `Infinity`. A key may occur only once in an object,
since parsers disagree about duplicates. Texts over 65,536 characters and values nested deeper than 32 or with more than
4,096 parts are no answer.

Two values are equal by type and content. Numbers compare by value (1 equals 1.0, but neither `true` nor "1"), strings by
character, lists in order, and objects by key in any order.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from temper.rewards.program_text import blocks

MAX_CHARACTERS, MAX_NESTING, MAX_PARTS, MAX_DIGITS = 65_536, 32, 4096, 300
ONE_LINE_FENCE = re.compile(r"```(?:json)?([^`\n]+)```", re.IGNORECASE)
MISSING = object()
JSON_FENCES = ("", "json", "jsonc", "json5", "text")


class NoJson(ValueError):
    """There is no JSON value, several values, or a value that is too large."""


def json_answer(text: str) -> Any:
    """Return the JSON value of an answer by the rules above. Raise `NoJson` if there is none."""
    if len(text) > MAX_CHARACTERS:
        raise NoJson(f"the answer has {len(text)} characters, more than {MAX_CHARACTERS}")
    text = text.strip()
    try:
        return parse_json(text)
    except NoJson as error:
        reason = error
    fenced = [block.text for block in blocks(text) if block.closed and block.mark in JSON_FENCES]
    fenced = fenced or ONE_LINE_FENCE.findall(text)
    if not fenced:
        raise reason
    first, *others = map(parse_json, fenced)
    if not all(is_same_json(first, other) for other in others):
        raise NoJson("the answer has code fences with different values")
    return first


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raise `NoJson` if it is not JSON or too large."""
    try:
        value = json.loads(
            text, object_pairs_hook=to_object, parse_constant=_constant, parse_float=_float, parse_int=_int
        )
    except NoJson:
        raise
    except (ValueError, RecursionError) as error:
        raise NoJson(f"invalid JSON: {error}"[:200]) from error
    _check_size(value)
    return value


def to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise NoJson("an object has a key twice")
    return made


def _constant(name: str) -> Any:
    raise NoJson(f"{name} is not a JSON value")


def _float(text: str) -> float:
    value = float(text)
    if len(text) > MAX_DIGITS or not math.isfinite(value):
        raise NoJson(f"the number {text:.40} is too large")
    return value


def _int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise NoJson(f"the number {text:.40}... is too large")
    return int(text)


def _check_size(value: Any) -> None:
    level, depth, parts = [value], 0, 0
    while level:
        depth, parts = depth + 1, parts + len(level)
        if depth > MAX_NESTING + 1 or parts > MAX_PARTS:
            raise NoJson(f"the value is nested deeper than {MAX_NESTING} or has more than {MAX_PARTS} parts")
        level = [inner for outer in level for inner in _inside(outer)]


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def is_same_json(left: Any, right: Any) -> bool:
    """Return whether two JSON values are equal by the rules above."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(is_same_json(*pair) for pair in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_same_json(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


def share_right(value: Any, reference: Any) -> float:
    """Return the share of the reference's leaves that the value has at the same place. An empty list is a leaf too."""
    found = list(_right(value, reference))
    return sum(found) / len(found)


def _right(value: Any, reference: Any) -> Iterator[bool]:
    """Yield for each leaf of the reference whether the value has it at the same place."""
    if isinstance(reference, dict) and reference:
        for key, inner in reference.items():
            yield from _right(value.get(key, MISSING) if isinstance(value, dict) else MISSING, inner)
    elif isinstance(reference, list) and reference:
        for index, inner in enumerate(reference):
            yield from _right(value[index] if isinstance(value, list) and index < len(value) else MISSING, inner)
    else:
        yield is_same_json(value, reference)

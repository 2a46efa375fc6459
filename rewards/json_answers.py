"""The JSON value that an answer gives, and equality of JSON values. Pure; bounded on any text.

The answer is the whole text where that is JSON, else the content of a code fence, with whatever else around it. Several fences
must hold the same value, else there is none; fences of a language other than JSON are not counted. A fence ends at the end of
a line, its own or the last one of the value. JSON is taken as RFC 8259 has it: no
comments, no single quotes, no trailing commas, no `NaN` or `Infinity`, and no key twice in one object, since readers disagree
about which one counts. Texts over 65,536 characters, values nested deeper than 32 and of more than 4,096 parts are no answer.

Two values are the same by type and content: numbers by value (1 and 1.0 are the same, `true` and 1 are not, nor are 1 and
"1"), strings character by character, lists in order, objects by their keys in any order.
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
    """There is no JSON value, or several, or one that is too large; the message says which."""


def json_answer(text: str) -> Any:
    """Return the JSON value of an answer by the rule above. Raise `NoJson` where there is none."""
    if len(text) > MAX_CHARACTERS:
        raise NoJson(f"the answer has {len(text)} characters, over {MAX_CHARACTERS}")
    text = text.strip()
    try:
        return parsed(text)
    except NoJson as error:
        reason = error
    fenced = [block.text for block in blocks(text) if block.closed and block.mark in JSON_FENCES]
    fenced = fenced or ONE_LINE_FENCE.findall(text)
    if not fenced:
        raise reason
    first, *others = map(parsed, fenced)
    if not all(same_json(first, other) for other in others):
        raise NoJson("the answer has code fences with different values")
    return first


def parsed(text: str) -> Any:
    """Return the value of a JSON text. Raise `NoJson` where it is none, or too large."""
    try:
        value = json.loads(
            text, object_pairs_hook=object_of, parse_constant=_constant, parse_float=_float, parse_int=_int
        )
    except NoJson:
        raise
    except (ValueError, RecursionError) as error:
        raise NoJson(f"no JSON: {error}"[:200]) from error
    _check_size(value)
    return value


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise NoJson("an object has a key twice")
    return made


def _constant(name: str) -> Any:
    raise NoJson(f"{name} is no JSON value")


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
            raise NoJson(f"the value is nested deeper than {MAX_NESTING}, or has more than {MAX_PARTS} parts")
        level = [inner for outer in level for inner in _inside(outer)]


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def same_json(left: Any, right: Any) -> bool:
    """Tell whether two JSON values are the same by the rule above."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(same_json(*pair) for pair in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


def share_right(value: Any, reference: Any) -> float:
    """Return the share of the reference value's leaves that stand at the same place in a value; an empty list is a leaf too."""
    found = list(_right(value, reference))
    return sum(found) / len(found)


def _right(value: Any, reference: Any) -> Iterator[bool]:
    """Yield for each leaf of the reference value whether a value has it at its place."""
    if isinstance(reference, dict) and reference:
        for key, inner in reference.items():
            yield from _right(value.get(key, MISSING) if isinstance(value, dict) else MISSING, inner)
    elif isinstance(reference, list) and reference:
        for index, inner in enumerate(reference):
            yield from _right(value[index] if isinstance(value, list) and index < len(value) else MISSING, inner)
    else:
        yield same_json(value, reference)

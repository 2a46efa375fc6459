"""The JSON value of an answer, equality of values, and schemas: fences, invalid JSON, hostile texts and schemas."""

import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from temper.envs.core.turn_text import parse_turn
from temper.rewards.answers import final_answer
from temper.rewards.choices import chosen_letter
from temper.rewards.json_answers import MAX_NESTING, NoJson, is_same_json, json_answer, share_right
from temper.rewards.json_schemas import MAX_REFERENCES, TooMuchWork, first_error, require_schema
from temper.rewards.program_text import program_of
from temper.rewards.short_answers import readings, short_answer

RIGHT = {"a": 1, "b": [True, None, "x"]}
TEXT = json.dumps(RIGHT)


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        f"\n\n  {TEXT}\n",
        f"```json\n{TEXT}\n```",
        f"```\n{TEXT}\n```",
        f"```JSON\n{json.dumps(RIGHT, indent=2)}\n```",
        f"Here it is:\n\n```json\n{TEXT}\n```\nAnything else?",
        f"  ```json\n  {TEXT}\n  ```",
        f"```json {TEXT}```",
        f"```json\n{TEXT}\n```\nor, which is the same,\n```json\n{json.dumps(RIGHT, indent=1)}\n```",
        f"```python\nprint(1)\n```\n```json\n{TEXT}\n```",
        '{"b": [true, null, "x"], "a": 1.0}',
        '{"a": 1, "b": [true, null, "\\u0078"]}',
    ],
)
def test_json_is_found_with_and_without_a_fence(text: str) -> None:
    assert is_same_json(json_answer(text), RIGHT)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"code": "run ```ls``` now"}', {"code": "run ```ls``` now"}),
        ('"```1```"', "```1```"),
        ('```json\n{"code": "run ```ls``` now"}\n```', {"code": "run ```ls``` now"}),
        ('```json\n{"a": "```"}```', {"a": "```"}),
        ('Here:\n```json\n[\n  "```",\n  1\n]```\nDone.', ["```", 1]),
    ],
)
def test_back_ticks_inside_a_value_are_no_fence(text: str, value: Any) -> None:
    assert json_answer(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *["", "none", f"Here it is: {TEXT}", f"{TEXT} {TEXT}", f"```json\n{TEXT}", "{'a': 1}"],
        *['{"a": 1,}', '{"a": 1} // one', "[" * 30_000],
        *[f"```json\n{TEXT}\n```\n```json\n[]\n```", '{"a": 1, "a": 1}', '{"a": NaN}', '{"a": -Infinity}'],
        *['{"a": 1e999}', '{"a": ' + "9" * 301 + "}", "[" * 40 + "]" * 40, "[" * 30_000 + "]" * 30_000],
        *["[" + "1," * 5_000 + "1]", '"' + "x" * 70_000 + '"'],
    ],
)
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(NoJson):
        json_answer(text)


@pytest.mark.parametrize(
    ("same", "pairs"),
    [
        (True, [(1, 1.0), (True, True), (None, None), ({"a": 1, "b": 2}, {"b": 2, "a": 1})]),
        (False, [(1, True), (0, False), ("1", 1), (None, False), ({"a": [True]}, {"a": [1]}), ([], {})]),
        (False, [([1, 2], [2, 1]), ([1], [1, 1]), ({"a": 1}, {"a": 1, "b": 2}), ("a", "A"), ("a ", "a")]),
    ],
)
def test_values_are_the_same_by_type_and_content(same: bool, pairs: list[tuple[Any, Any]]) -> None:
    for left, right in pairs:
        assert (is_same_json(left, right), is_same_json(right, left)) == (same, same), (left, right)


def test_the_share_of_right_values_counts_reference_leaves() -> None:
    reference = {"a": 1, "b": {"c": [1, 2], "d": []}}
    assert share_right(reference, reference) == 1.0
    assert share_right({"a": 1, "b": {"c": [2, 2], "d": []}, "e": 5}, reference) == 0.75
    assert share_right({"a": "1"}, reference) == 0.0
    assert share_right([1, 2], reference) == 0.0
    assert share_right(5, 5) == 1.0


RECURSIVE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["next"],
}


@pytest.mark.parametrize(
    ("schema", "value", "error"),
    [
        ({"type": "integer"}, 2.0, None),
        ({"type": "integer"}, True, "is not of type 'integer'"),
        (
            {"properties": {"a": {"type": "string"}}, "additionalProperties": False},
            {"a": "x", "b": 1},
            "does not allow 1",
        ),
        (
            {"additionalProperties": {"type": "string"}, "patternProperties": {"^n_": {"type": "integer"}}},
            {"n_": 1},
            None,
        ),
        (
            {"additionalProperties": {"type": "string"}, "patternProperties": {"^n_": {"type": "integer"}}},
            {"n": 1},
            "string",
        ),
        ({"pattern": "^[a-z]+$"}, "abc", None),
        ({"pattern": "^[a-z]+$"}, "ab1", "does not match"),
        ({"pattern": "^[a-z]+$"}, 5, None),
        ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}], None),
        ({"uniqueItems": True}, [{"a": [1]}, {"a": [1.0]}], "the same item twice"),
        (RECURSIVE, {"next": {"next": {"next": None}}}, None),
        (RECURSIVE, {"next": {"next": {}}}, "not valid under any"),
        ({"format": "date", "type": "string"}, "not a date", None),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 3, "exclusiveMaximum": True},
            3,
            "greater than",
        ),
        (
            {"$defs": {"n": {"$anchor": "here", "type": "integer"}}, "items": {"$ref": "#here"}},
            ["x"],
            "'x' is not of type",
        ),
        (True, 1, None),
        (False, 1, "does not allow 1"),
    ],
)
def test_a_schema_is_kept_or_broken(schema: Any, value: Any, error: str | None) -> None:
    found = first_error(value, require_schema(schema))
    assert found is None if error is None else error in str(found)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "nonsense"}, "nonsense"),
        ([], r"\[\]"),
        ({"$ref": "https://example.com/schema"}, "https://example.com/schema"),
        ({"items": {"$ref": "other.json#/a"}}, "other.json#/a"),
        ({"$ref": "#/$defs/missing"}, "#/\\$defs/missing"),
        ({"$schema": "https://example.com/own"}, "https://example.com/own"),
        ({"pattern": "(?<n>"}, r"\(\?<n>"),
        ({"pattern": "(?&missing)"}, r"\(\?&missing"),
        ({"unevaluatedProperties": False, "patternProperties": {"a": {}}}, "patternProperties"),
        ({"enum": ["x" * 70_000]}, "65536"),
    ],
)
def test_an_unusable_schema_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        require_schema(schema)


def test_a_schema_nested_without_end_is_refused() -> None:
    schema: dict[str, Any] = {}
    inner = schema
    for _ in range(900):
        inner["items"] = {}
        inner = inner["items"]
    with pytest.raises(ValueError, match="JSON schema"):
        require_schema(schema)


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"next": None}
    for _ in range(depth):
        value = {"next": value}
    return value


def test_the_deepest_value_passes_a_recursive_schema() -> None:
    assert first_error(json_answer(json.dumps(nested(MAX_NESTING - 2))), require_schema(RECURSIVE)) is None


def test_repeated_references_of_a_schema_are_stopped() -> None:
    branches = [{"properties": {"next": {"$ref": "#"}}, "required": ["next", key]} for key in ("a", "b")]
    start = time.monotonic()
    with pytest.raises(TooMuchWork, match=str(MAX_REFERENCES)):
        first_error(nested(MAX_NESTING - 2), require_schema({"anyOf": [{"type": "integer"}, *branches]}))
    assert time.monotonic() - start < 20


def test_a_pattern_that_would_take_for_ever_is_stopped() -> None:
    schema = require_schema({"patternProperties": {r"^(?:a|b|ab)*[^ab]$": {}}})
    with pytest.raises(TooMuchWork, match="patterns"):
        first_error({"ab" * 40: 1}, schema)


LONG = 60_000
HOSTILE = [
    (text * LONG)[:LONG]
    for text in (
        "```python\nx=1\n", "```\n", "```json\n{", "`", "` ", "```json", "~~~\n", "```x", " ", "{", '"\\', "[\n",
        "1, ",
    )
]  # fmt: skip
EXTRACTORS: dict[str, Callable[[str], Any]] = {
    "json": json_answer,
    "program": partial(program_of, entry_point="f", prompt="def f(x):\n"),
    "answer": final_answer,
    "choice": partial(chosen_letter, count=4),
    "short answer": short_answer,
    "list": lambda text: list(readings(text)),
    "calls": partial(parse_turn, thinks=True),
}


@pytest.mark.parametrize("name", EXTRACTORS)
def test_hostile_texts_take_little_time(name: str) -> None:
    """The largest text that is read. Quadratic time would take 12 s of CPU for one of them."""
    for text in HOSTILE:
        start = time.process_time()
        with contextlib.suppress(NoJson):
            EXTRACTORS[name](text)
        assert time.process_time() - start < 2.0, text[:20]


def test_unclosed_and_foreign_fences_are_no_json() -> None:
    for text in ("```json\n1\n```\n```json\n2", "```python\n2\n```\n~~~json\n1\n~~~"):
        assert json_answer(text) == 1

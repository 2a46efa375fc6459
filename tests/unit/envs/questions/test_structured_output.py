"""Structured output: rows with a schema, the parts of the score, refused rows."""

import json
from functools import partial
from typing import Any

import pytest
from support.bound import row_task
from support.refusals import failure_kind

from temper.envs.core.errors import FailureKind
from temper.envs.transcript import score_turns
from temper.rewards.score import Outcome

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
task_of = partial(row_task, "structured_output")
ROW = {"prompt": "Ann is 31.", "schema": SCHEMA, "completion": {"name": "Ann", "age": 31}}


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ('{"name": "Ann", "age": 31}', (1, 1, 1, 1)),
        ('```json\n{"age": 31.0, "name": "Ann"}\n```', (1, 1, 1, 1)),
        ('{"name": "Ann", "age": 32}', (0, 1, 1, 0.5)),
        ('{"name": "Ann", "age": "31"}', (0, 1, 0, 0.5)),
        ('{"name": "Ann", "age": 31, "city": null}', (0, 1, 1, 1)),
        ('{"name": "Ann"}', (0, 1, 0, 0.5)),
        ('["Ann", 31]', (0, 1, 0, 0)),
        ("Ann is 31.", (0, 0, 0, 0)),
    ],
)
def test_values_are_judged_beside_validity(answer: str, parts: tuple[float, ...]) -> None:
    judged = score_turns(task_of(ROW), [answer]).score
    assert tuple(judged.parts[name] for name in ("correct", "format", "valid", "values")) == parts


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        ROW | {"schema": json.dumps(SCHEMA), "completion": json.dumps(ROW["completion"])},
        {"question": "Ann is 31.", "json_schema": SCHEMA, "answer": ROW["completion"]},
    ],
)
def test_a_row_with_a_text_shows_its_schema(row: dict[str, Any]) -> None:
    task = task_of(row)
    assert task.messages[0]["content"].startswith("Ann is 31.\n\n")
    assert json.dumps(SCHEMA) in task.messages[0]["content"]
    assert score_turns(task, [json.dumps(ROW["completion"])]).reward == 1.0


def test_messages_of_a_row_are_shown_as_they_are() -> None:
    messages = [{"role": "system", "content": f"Say {json.dumps(SCHEMA)}"}, {"role": "user", "content": "Ann is 31."}]
    assert task_of(ROW | {"prompt": messages}).messages == tuple(messages)


def test_a_schema_alone_asks_for_any_valid_value() -> None:
    task = task_of({"json_schema": json.dumps(SCHEMA), "unique_id": "x"})
    assert score_turns(task, ['{"name": "", "age": 0}']).reward == 1.0
    assert score_turns(task, ['{"name": ""}']).reward == 0.0


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"completion": {"name": "Ann"}}, "completion.*'age'"),
        ({"completion": "Ann"}, "completion"),
        ({"schema": "{'a': 1}"}, "schema"),
        ({"schema": {"$ref": "https://example.com/x"}}, "https://example.com/x"),
        ({"schema": {"properties": {"age": {"$ref": "#/properties/age"}}}}, "itself"),
        ({"schema": {"$defs": {"b": {}}, "properties": {"age": {"$id": "x", "$ref": "#/$defs/b"}}}}, "defs/b"),
        ({"schema": {"pattern": r"^(?:a|b|ab)*[^ab]$"}, "completion": json.dumps("ab" * 40)}, "patterns"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [{"role": "user", "content": [5]}]}, "`content`.*5"),
        ({"prompt": [{"role": "system", "content": "x"}]}, "`prompt`"),
    ],
)
def test_a_broken_row_is_refused_by_name(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        task_of(ROW | changed)


def test_a_value_that_asks_for_too_much_work_is_the_models_fault() -> None:
    pattern = {"properties": {"name": {"pattern": r"^(?:a|b|ab)*[^ab]$"}}}
    task = task_of({"json_schema": pattern})
    judged = score_turns(task, [json.dumps({"name": "ab" * 40})])
    assert (judged.reward, judged.score.outcome) == (0.0, Outcome.POLICY_FAULT)


def test_a_schema_without_end_is_the_graders_fault() -> None:
    task = task_of({"json_schema": {"properties": {"a": {"$ref": "#/properties/a"}}}})
    scored = score_turns(task, ['{"a": 1}'])
    assert scored.reward is None
    assert failure_kind(scored) is FailureKind.GRADER

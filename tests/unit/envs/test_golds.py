"""Rows whose right answer no answer can equal are refused with the field and its value, by every reader."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from support.refusals import refuses

from temper.envs.binding import EnvConfig, bind
from temper.envs.catalog import environment
from temper.envs.core.judge_config import JudgeConfig
from temper.envs.core.row_format import load_row
from temper.envs.data.config import DataConfig
from temper.envs.source import read_all_rows

CHOICES = {"question": "Q?", "choices": ["x", "y"]}
LABELLED = {"question": "Q?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}}
GPQA = {"Question": "Q?", **{f"Incorrect Answer {n}": str(n) for n in (1, 2, 3)}}
FIELDS: list[tuple[str, dict[str, Any], str]] = [
    ("math", {"question": "Q?"}, "answer"),
    ("math", {"problem": "Q?"}, "answer"),
    ("math", {"problem": "Q?"}, "solution"),
    ("short_answer", {"question": "Q?"}, "answer"),
    ("short_answer", {"question": "Q?", "unit": "m"}, "answer"),
    ("short_answer", {"question": "Q?"}, "items"),
    ("short_answer", {"question": "Q?"}, "possible_answers"),
    ("short_answer", {"input": "Q?", "context": "C"}, "answers"),
    ("multiple_choice", CHOICES, "answer"),
    ("multiple_choice", LABELLED, "answerKey"),
    ("multiple_choice", GPQA, "Correct Answer"),
    ("structured_output", {"prompt": "Q?", "schema": {}}, "completion"),
    ("needles", {"input": "Q?"}, "outputs"),
    ("code", {"text": "Double.", "code": "def f(x): return 2 * x"}, "test_list"),
    ("instruction_following", {"prompt": "P", "kwargs": [{}]}, "instruction_id_list"),
]
NO_GOLDS: tuple[Any, ...] = (None, math.nan, math.inf, -math.inf, "", " ", [], [None])


@pytest.mark.parametrize(("env", "row", "name"), FIELDS, ids=[f"{env}-{name}" for env, _, name in FIELDS])
def test_a_gold_that_is_none_is_refused_with_its_field(env: str, row: dict[str, Any], name: str) -> None:
    for bad in NO_GOLDS:
        if env == "structured_output" and bad in ([], [None]):  # lists are values there
            continue
        with pytest.raises(ValueError, match=f"{name}|unknown instruction") as error:
            load_row(environment(env).formats, row | {name: bad})
        if bad is None:
            assert "null" in str(error.value) or "None" in str(error.value)


@pytest.mark.parametrize(
    ("env", "row"),
    [
        ("short_answer", {"question": "Q?", "answer": "word " * 1000}),
        ("short_answer", {"question": "Q?", "answer": ["a", math.nan]}),
        ("short_answer", {"question": "Q?", "answer": {"value": "a", "aliases": [None]}}),
        ("short_answer", {"question": "Q?", "items": [str(n) for n in range(300)]}),
        ("multiple_choice", CHOICES | {"choices": ["x", ""], "answer": "B"}),
        ("multiple_choice", CHOICES | {"choices": ["x", math.nan], "answer": "A"}),
        ("structured_output", {"prompt": "Q?", "schema": {}, "completion": {"a": [math.nan]}}),
        ("structured_output", {"prompt": "Q?", "schema": {}, "completion": "x" * 70_000}),
        ("code", {"question": "Q?", "inputs": ["1"], "outputs": [math.nan]}),
    ],
)
def test_a_gold_that_its_grader_can_not_match_is_refused(env: str, row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        load_row(environment(env).formats, row)


@pytest.mark.parametrize(
    ("env", "row"),
    [
        ("short_answer", {"question": "Q?", "answer": ["a", ""]}),
        ("short_answer", {"question": "Q?", "answer": "C++"}),
        ("short_answer", {"question": "Q?", "answer": {"value": "a", "aliases": None}}),
        ("short_answer", {"question": "Q?", "items": ["a; b", "c, d and e"]}),
        ("structured_output", {"prompt": "Q?", "schema": {}, "completion": "null"}),
        ("code", {"question": "Q?", "fn_name": "f", "inputs": [[1]], "outputs": [math.inf]}),
    ],
)
def test_unusual_golds_that_can_be_matched_are_kept(env: str, row: dict[str, Any]) -> None:
    assert load_row(environment(env).formats, row).messages


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
@pytest.mark.parametrize("columns", [{}, {"answer": "gold"}])
def test_a_table_names_its_null_gold(bad: float | None, columns: dict[str, str], tmp_path: Path) -> None:
    """A table has nulls in columns of numbers, often as NaN."""
    name = columns.get("answer", "answer")
    rows = [{"question": f"What is {n}+1?", name: n + 1.0} for n in range(3)]
    pa.parquet.write_table(pa.Table.from_pylist([*rows, {"question": "What?", name: bad}]), tmp_path / "rows.parquet")
    env = bind("math", EnvConfig(data=DataConfig(path=str(tmp_path / "rows.parquet"), columns=columns)))
    shown = "Infinity" if bad == math.inf else "null"
    with refuses("answer", "row 4", shown):
        read_all_rows(env, env.config.data or DataConfig(path=""))


def test_a_judge_needs_the_reference_of_every_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"Q{n}?", "gold": n or None}) + "\n" for n in (1, 0)))
    judge = JudgeConfig(url="http://127.0.0.1:1/v1", model="m", reference="gold", rubric="Right?")
    env = bind("rows", EnvConfig(data=DataConfig(path=str(path)), judge=judge))
    with refuses("gold", "null"):
        read_all_rows(env, env.config.data or DataConfig(path=""))


def test_a_gold_is_read_for_at_most_a_second() -> None:
    row = {"question": "Q?", "answer": "\\binom{1000000}{500000}"}
    with refuses("answer"):
        load_row(environment("math").formats, row | {"answer": "?"})  # the grader is warm
    start = time.monotonic()
    with refuses("answer"):
        load_row(environment("math").formats, row)
    assert time.monotonic() - start < 8

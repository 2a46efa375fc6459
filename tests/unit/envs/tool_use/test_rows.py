"""Rows of function-calling data as tasks, with reference calls and wrong ones."""

import dataclasses
import json
from typing import Any

import pytest
from support.refusals import refuses
from support.task_data import DATA, needs_data

from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF
from temper.envs.core.turn_text import parse_calls
from temper.envs.tool_use import function_rows, leaderboard_rows, reference
from temper.envs.tool_use.env import ToolEnv


def row(
    accepted: list[dict[str, Any]], properties: dict[str, Any], *, required: list[str], name: str = "f"
) -> dict[str, Any]:
    """Return a row with one function."""
    parameters = {"type": "dict", "properties": properties, "required": required}
    return {
        "id": "row",
        "question": [[{"role": "user", "content": "Call f."}]],
        "function": [{"name": name, "description": "Does it.", "parameters": parameters}],
        "ground_truth": accepted,
    }


def reward(task: Task, turns: list[str]) -> float:
    env = ToolEnv()
    env.reset(options={"task": dataclasses.replace(task, thinking=OFF)})
    (turn,) = turns
    _, value, terminated, _, _ = env.step(turn)
    assert terminated
    return value


def reference_arguments(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments of a row's reference calls."""
    (turn,) = reference.reference(function_rows.load(made))
    return [call.arguments for call in parse_calls(turn)]  # type: ignore[union-attr]


JAVA = {
    "name": {"type": "String", "description": "name"},
    "size": {"type": "long"},
    "share": {"type": "double"},
    "flag": {"type": "Boolean"},
    "all": {"type": "ArrayList", "items": {"type": "int"}},
    "map": {"type": "HashMap", "properties": {"type": {"type": "char"}}},
    "what": {"type": "any"},
    "odd": {"type": "Locale", "enum": ["a"]},
    "pair": {"type": "tuple", "items": {"type": "float"}},
    "either": {"type": ["string", "null"]},
}


def test_the_data_sets_names_of_types_become_json_schemas() -> None:
    task = function_rows.load(row([{"f": {}}], JAVA, required=["name"]))
    parameters = task.tools[0]["function"]["parameters"]
    assert (parameters["type"], parameters["required"]) == ("object", ["name"])
    assert parameters["properties"] == {
        "name": {"type": "string", "description": "name"},
        "size": {"type": "integer"},
        "share": {"type": "number"},
        "flag": {"type": "boolean"},
        "all": {"type": "array", "items": {"type": "integer"}},
        "map": {"type": "object", "properties": {"type": {"type": "string"}}},
        "what": {},
        "odd": {"enum": ["a"]},
        "pair": {"type": "array", "items": {"type": "number"}},
        "either": {"type": ["string", "null"]},
    }


def test_reference_calls_have_the_first_accepted_values() -> None:
    properties: dict[str, Any] = {
        "a": {"type": "integer"},
        "b": {"type": "integer"},
        "c": {"type": "integer"},
        "d": {"type": "dict"},
    }
    properties |= {"e": {"type": "array", "items": {"type": "dict"}}, "f": {"type": "array"}}
    accepted = {
        "a": [3, 4],
        "b": ["", 5],
        "c": [0, ""],
        "d": [{"x": [1, 2], "y": ["z", ""], "l": [["p", "q"]]}],
        "e": [[{"k": ["v", "w"]}]],
        "f": [""],
    }
    made = row([{"f": accepted}], properties, required=["a", "c", "f"])
    assert reference_arguments(made) == [{"a": 3, "c": 0, "d": {"x": 1, "l": ["p", "q"]}, "e": [{"k": "v"}], "f": []}]


@pytest.mark.parametrize(
    "made",
    [
        row([{"a.b.f": {"x": [1]}}], {"x": {"type": "integer"}}, required=["x"], name="a.b.f"),
        row([{"f": {}}], {}, required=[]),
        row([{"f": {"x": ["who"], "y": [[1, 2], ""]}}], JAVA | {"x": {"type": "any"}}, required=["x"]),
        row([{"f": {"map": [{"k": ["v"], "n": [{"deep": ["raw", "list"]}]}]}}], JAVA, required=["map"]),
        row([{"f": {"all": [[1, 2]]}}, {"f": {"all": [[3]], "flag": [True]}}], JAVA, required=["all"]),
        row([{"f": {"size": [1]}}, {"f": {"size": [1, 7920]}}], JAVA, required=["size"]),
        row([{"f": {"flag": [True, False]}}], JAVA, required=["flag"]),
        row([{"f": {"share": ["", None]}}], JAVA, required=["share"]),
        row([], JAVA, required=[]),
    ],
)
def test_reference_calls_pass_and_negatives_fail(made: dict[str, Any]) -> None:
    task = function_rows.load(made)
    assert reward(task, reference.reference(task)) == 1.0
    negatives = dict(reference.negatives(task))
    assert "extra call" in negatives
    assert [name for name, turns in negatives.items() if reward(task, turns) != 0.0] == []


def test_only_leaderboard_texts_are_compared_loosely() -> None:
    made = row([{"f": {"version": ["3.5"]}}], {"version": {"type": "string"}}, required=["version"])
    call = '<tool_call>{{"name": "f", "arguments": {{"version": "{}"}}}}</tool_call>'
    task = function_rows.load(made)
    assert [reward(task, [call.format(text)]) for text in ("3.5", "35")] == [1.0, 0.0]
    as_published = dataclasses.replace(task, spec={"accepted": task.spec["accepted"]})
    assert reward(as_published, [call.format("35")]) == 1.0


def test_the_negatives_are_of_every_kind() -> None:
    made = row([{"f": {"size": [1], "name": ["Al"], "flag": [True]}}], JAVA, required=["size", "name"])
    task = function_rows.load(made)
    assert list(dict(reference.negatives(task))) == [
        "extra call", "f (0) left out", "f (0): wrong function", "f (0): unknown argument", "f (0): no size",
        "f (0): wrong size", "f (0): mistyped size", "f (0): fraction size", "f (0): no name", "f (0): wrong name",
        "f (0): mistyped name", "f (0): no flag", "f (0): wrong flag", "f (0): mistyped flag",
    ]  # fmt: skip


def test_an_argument_without_a_value_has_no_reference_call() -> None:
    task = function_rows.load(row([{"f": {"size": []}}], JAVA, required=["size"]))
    with refuses("size"):
        reference.reference(task)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"question": []}, "question"),
        ({"question": [[], []]}, "question"),
        ({"question": [[{"role": "system", "content": "x"}]]}, "question"),
        ({"question": [[{"role": "robot", "content": "x"}]]}, "robot"),
        ({"function": [{"parameters": {}}]}, "function"),
        ({"function": [{"name": "f"}]}, "function"),
        ({"function": [{"name": "f", "parameters": {"properties": {"x": 1}}}]}, "function"),
        ({"ground_truth": [{"f": {"x": 1}}]}, "ground_truth"),
        ({"ground_truth": [{"f": {}, "g": {}}]}, "ground_truth"),
        ({"ground_truth": ["f(x=1)"]}, "ground_truth"),
        ({"ground_truth": None}, "ground_truth"),
    ],
)
def test_a_broken_row_is_named(change: dict[str, Any], key: str) -> None:
    with refuses(key):
        function_rows.load(row([{"f": {}}], {}, required=[]) | change)


@needs_data
@pytest.mark.parametrize(("name", "rows"), [("bfcl_simple_python.jsonl", 400), ("bfcl_parallel.jsonl", 200)])
def test_reference_calls_of_real_rows_pass_in_any_order(name: str, rows: int) -> None:
    read = 0
    with (DATA / name).open(encoding="utf-8") as file:
        for line in file:
            task = function_rows.load(json.loads(line))
            (turn,) = reference.reference(task)
            assert leaderboard_rows.judge(task, parse_calls(turn)).parts["correct"] == 1.0, line
            assert leaderboard_rows.judge(task, parse_calls(turn)[::-1]).parts["correct"] == 1.0, line
            for label, (corrupted,) in reference.negatives(task):
                assert leaderboard_rows.judge(task, parse_calls(corrupted)).parts["correct"] == 0.0, (label, line)
            read += 1
    assert read == rows

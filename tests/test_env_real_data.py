"""The environments on real rows: gold answers are accepted, corrupted ones rejected."""

import copy
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from envs.catalog import environment, make_env
from envs.dialogue import call_message, turn_text
from envs.formats import load_row
from envs.source import EnvConfig, FileSource, open_source
from envs.task import Task

DATA = Path(__file__).parents[1] / ".." / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real task data (../shared/data) is not on this machine")


def rows(name: str) -> Iterator[dict[str, Any]]:
    with (DATA / name).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def reward(task: Task, answer: str) -> float:
    env = make_env(task.env)
    env.reset(options={"task": task})
    _, value, terminated, _, _ = env.step(f"a thought\n</think>\n\n{answer}")
    assert terminated
    return float(value)


def test_every_gsm8k_answer_is_accepted_and_its_neighbour_rejected() -> None:
    for index, row in enumerate(rows("gsm8k_train.jsonl")):
        task = load_row(environment("math").formats, row, str(index))
        gold = task.spec["answer"]
        wrong = str(int(gold.replace(",", "")) + 1)
        assert reward(task, row["answer"]) == 1.0, row
        assert reward(task, f"It is \\boxed{{{gold}}}.") == 1.0, row
        assert reward(task, f"It is \\boxed{{{wrong}}}.") == 0.0, row


def test_every_canonical_humaneval_solution_passes_and_an_empty_body_fails() -> None:
    def scores(row: dict[str, Any]) -> tuple[float, float, float]:
        task = load_row(environment("code").formats, row, row["task_id"])
        solution = f"```python\n{row['prompt']}{row['canonical_solution']}\n```"
        return reward(task, solution), reward(task, row["canonical_solution"]), reward(task, row["prompt"] + "    pass")

    with ThreadPoolExecutor(4) as pool:
        for row, result in zip(rows("humaneval.jsonl"), pool.map(scores, rows("humaneval.jsonl")), strict=True):
            assert result == (1.0, 1.0, 0.0), row["task_id"]


def gold_calls(truth: list[dict[str, dict[str, list[Any]]]]) -> list[dict[str, Any]]:
    """Calls with the first accepted value of every argument that may not be left out."""
    calls = []
    for call in truth:
        ((name, accepted),) = call.items()
        arguments = {key: plain(values[0]) for key, values in accepted.items() if "" not in values}
        calls.append({"name": name, "arguments": arguments})
    return calls


def plain(value: Any) -> Any:
    """An accepted object lists the accepted values of each key: takes the first."""
    if not isinstance(value, dict):
        return [plain(item) for item in value] if isinstance(value, list) else value
    return {key: plain(choices[0]) for key, choices in value.items() if "" not in choices}


def corruptions(calls: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """A wrong function, an extra call, a missing call; and a missing and a wrong required argument."""
    yield [calls[0] | {"name": calls[0]["name"] + "_other"}, *calls[1:]]
    yield [*calls, calls[0]]
    yield calls[1:]
    for key in calls[0]["arguments"]:
        missing, wrong = copy.deepcopy(calls), copy.deepcopy(calls)
        del missing[0]["arguments"][key]
        wrong[0]["arguments"][key] = "certainly not this"
        yield missing
        yield wrong


def said(calls: list[dict[str, Any]]) -> str:
    tool_calls = [call_message(call["name"], call["arguments"]) for call in calls]
    return turn_text({"content": "", "tool_calls": tool_calls}, reasoning=False)


@pytest.mark.parametrize("name", ["bfcl_simple_python.jsonl", "bfcl_parallel.jsonl"])
def test_bfcl_gold_calls_are_accepted_in_any_order_and_corrupted_ones_rejected(name: str) -> None:
    for row in rows(name):
        task = load_row(environment("tool_use").formats, row, row["id"])
        calls = gold_calls(row["ground_truth"])
        assert reward(task, said(calls)) == 1.0, row
        assert reward(task, said(calls[::-1])) == 1.0, row
        for corrupted in corruptions(calls):
            assert reward(task, said(corrupted)) == 0.0, (row, corrupted)


@pytest.mark.parametrize(
    ("env_id", "name", "key"),
    [
        ("math", "gsm8k_train.jsonl", None),
        ("code", "humaneval.jsonl", "HumanEval/"),
        ("tool_use", "bfcl_parallel.jsonl", "parallel_"),
    ],
)
def test_files_of_real_rows_are_sources(env_id: str, name: str, key: str | None) -> None:
    sources = [
        open_source(env_id, EnvConfig(data=str(DATA / name)), split=split, seed=0) for split in ("train", "heldout")
    ]
    train, held = sources
    assert isinstance(train, FileSource)
    assert isinstance(held, FileSource)
    assert len(train.tasks) > len(held.tasks) > 0
    assert train.skipped == 0
    assert key is None or train.task(0).key.startswith(key)

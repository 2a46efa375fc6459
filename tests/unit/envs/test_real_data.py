"""The environments on real rows: gold answers are accepted, corrupted ones rejected."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.bound import bound, made

from temper.envs.binding import EnvConfig, bind
from temper.envs.catalog import environment
from temper.envs.core.row_format import load_row
from temper.envs.core.task import Task
from temper.envs.data.config import DataConfig
from temper.envs.source import RowSource, open_source

DATA = Path(__file__).parents[3] / ".." / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real task data (../shared/data) is not on this machine")


def rows(name: str) -> Iterator[dict[str, Any]]:
    with (DATA / name).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def reward(task: Task, answer: str, *, env_id: str = "math") -> float:
    env = made(env_id)
    env.reset(options={"task": bound(task, env_id)})
    _, value, terminated, _, _ = env.step(f"a thought\n</think>\n\n{answer}")
    assert terminated
    return float(value)


def test_every_gsm8k_answer_is_accepted_and_its_neighbour_rejected() -> None:
    for row in rows("gsm8k_train.jsonl"):
        task = load_row(environment("math").formats, row)
        gold = task.spec["answer"]
        wrong = str(int(gold.replace(",", "")) + 1)
        assert reward(task, row["answer"]) == 1.0, row
        assert reward(task, f"It is \\boxed{{{gold}}}.") == 1.0, row
        assert reward(task, f"It is \\boxed{{{wrong}}}.") == 0.0, row


def test_every_canonical_humaneval_solution_passes_and_an_empty_body_fails() -> None:
    def scores(row: dict[str, Any]) -> tuple[float, float, float]:
        task = load_row(environment("code").formats, row)
        solution = f"```python\n{row['prompt']}{row['canonical_solution']}\n```"
        answers = (solution, row["canonical_solution"], row["prompt"] + "    pass")
        right, bare, empty = (reward(task, answer, env_id="code") for answer in answers)
        return right, bare, empty

    with ThreadPoolExecutor(4) as pool:
        for row, result in zip(rows("humaneval.jsonl"), pool.map(scores, rows("humaneval.jsonl")), strict=True):
            assert result == (1.0, 1.0, 0.0), row["task_id"]


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
        open_source(bind(env_id, EnvConfig(data=DataConfig(path=str(DATA / name)))), split=split, seed=0)
        for split in ("train", "heldout")
    ]
    train, held = sources
    assert isinstance(train, RowSource)
    assert isinstance(held, RowSource)
    assert len(train.tasks) > len(held.tasks) > 0
    assert train.skipped == 0
    assert key is None or train.task(0).key.startswith(key)

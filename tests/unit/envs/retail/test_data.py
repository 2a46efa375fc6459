"""The shop on the real rows: reference actions are right, and wrong if some are missing, added or changed."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest
from support.bound import bound, opened

from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF
from temper.envs.core.turn_text import call_message, turn_text
from temper.envs.retail import reference, rows
from temper.envs.retail.env import with_folder
from temper.envs.retail.tools import WRITING, replay

DATA = Path(__file__).parents[4] / ".." / "shared" / "data" / "tau_retail"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real task data (../shared/data) is not on this machine")


@functools.cache
def tasks() -> dict[tuple[str, int], Task]:
    """Return all tasks by file and 0-based row."""
    found = {}
    for name in ("tasks_train", "tasks_dev"):
        with (DATA / f"{name}.jsonl").open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                task = bound(rows.load(json.loads(line), folder=DATA), with_folder(DATA))
                found[name, number] = dataclasses.replace(task, thinking=OFF)
    return found


def correct(task: Task, turns: list[str]) -> float:
    env = opened(task)
    for turn in turns:
        _, reward, terminated, truncated, _ = env.step(turn)
    assert terminated
    assert not truncated
    return reward


def at_once(task: Task, actions: list[dict[str, Any]]) -> list[str]:
    """Return all calls in one turn, then the outputs."""
    calls = [call_message(action["name"], action["arguments"]) for action in actions]
    turns = [turn_text({"content": "", "tool_calls": calls}, thinks=False)] if calls else []
    return [*turns, "\n".join(task.spec["outputs"]), "Bye."]


def test_all_rows_are_read() -> None:
    assert len(tasks()) == 520
    assert {len(task.tools) for task in tasks().values()} == {16}


def test_reference_actions_are_right_in_one_turn_and_one_by_one() -> None:
    for key, task in tasks().items():
        assert correct(task, reference.reference(task)) == 1.0, key
        assert correct(task, at_once(task, task.spec["actions"])) == 1.0, key


@functools.cache
def refused() -> set[tuple[tuple[str, int], int]]:
    """Return row and position of the reference actions that the shop refuses."""
    return {
        (key, index) for key, task in tasks().items() for index in replay(rows.database_of(task), task.spec["actions"])
    }


def test_the_few_refused_reference_actions_lack_balance() -> None:
    assert len(refused()) == 20
    for key, index in refused():
        assert tasks()[key].spec["actions"][index]["arguments"]["payment_method_id"].startswith("gift_card")


def test_missing_changed_or_added_writing_actions_are_wrong() -> None:
    for key, task in tasks().items():
        positions = [index for index, action in enumerate(task.spec["actions"]) if action["name"] in WRITING]
        effective = [index for index in positions if (key, index) not in refused()]
        negatives = dict(reference.negatives(task))
        for index in effective:
            label = f"{task.spec['actions'][index]['name']} ({index})"
            assert f"{label} left out" in negatives, key
            assert any(name.startswith(f"{label} with ") for name in negatives), (key, label)
        assert "one change more" in negatives
        assert [name for name, turns in negatives.items() if correct(task, turns) != 0.0] == [], key

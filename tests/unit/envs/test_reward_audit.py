"""The audit of rewards finds every reward that requires no knowledge of the task, and nothing in sound environments."""

import importlib.util
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny_shop import write_shop

from temper.envs.all_tasks import generate_tasks
from temper.envs.catalog import configure_env, environment
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.retail import rows
from temper.envs.retail.env import with_folder
from temper.envs.reward_audit import FEWEST, CaseCheck, audit
from temper.envs.task_env import TaskEnv
from temper.rewards.score import binary_score

NOTHING, AMONG_MANY, COPIED, INSIDE_CALLS, ONE_ANSWER, OTHER_ANSWERS = range(6)
CANCEL = {"name": "cancel_pending_order", "kwargs": {"order_id": "#W4", "reason": "no longer needed"}}
NEEDS_PUZZLES = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed"
)


def audited(env: EnvDefinition, tasks: list[Task]) -> list[CaseCheck]:
    assert env.reference is not None
    return audit(env, tasks, {task.key: env.reference(task) for task in tasks})


def failed(findings: list[CaseCheck]) -> set[int]:
    return {number for number, finding in enumerate(findings) if finding.against}


@NEEDS_PUZZLES
@pytest.mark.parametrize(("weights", "found"), [({}, set()), ({"score": 1.0}, {ONE_ANSWER, OTHER_ANSWERS})])
def test_a_part_of_a_score_that_pays_one_answer_to_all_is_found(weights: dict[str, float], found: set[int]) -> None:
    env = configure_env("reasoning_gym", {"dataset": "game_of_life"})
    tasks = [_with(task, weights=weights) for task in generate_tasks(env, FEWEST, seed=0)]
    assert failed(audited(env, tasks)) == found


@pytest.mark.parametrize(("shown", "found"), [(0, set()), (99, {COPIED})])
def test_feedback_that_gives_the_answer_away_is_found(shown: int, found: set[int]) -> None:
    env = environment("code")
    tasks = [replace(task, spec=task.spec | {"shown": shown}) for task in generate_tasks(env, 4, seed=0)]
    assert failed(audited(env, tasks)) == found


@pytest.mark.parametrize(("actions", "found"), [([CANCEL], set()), ([], {NOTHING, COPIED, INSIDE_CALLS})])
def test_a_task_that_is_solved_by_doing_nothing_is_found(
    tmp_path: Path, actions: list[dict[str, Any]], found: set[int]
) -> None:
    assert failed(audited(*_shop(write_shop(tmp_path), actions, []))) == found


@pytest.mark.parametrize(("counted", "found"), [("whole", set()), ("part", {AMONG_MANY})])
def test_an_output_that_is_said_among_all_numbers_is_found(tmp_path: Path, counted: str, found: set[int]) -> None:
    assert failed(audited(*_shop(write_shop(tmp_path), [CANCEL], ["10.1"], counted=counted))) == found


@pytest.mark.parametrize(("kwargs", "found"), [({}, set()), ({"map_name": "4x4"}, {ONE_ANSWER, OTHER_ANSWERS})])
def test_a_game_that_is_always_the_same_is_found(kwargs: dict[str, Any], found: set[int]) -> None:
    env = configure_env("gym", {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False, **kwargs}})
    assert failed(audited(env, generate_tasks(env, FEWEST, seed=0))) == found


class Reads(TaskEnv):
    """Pays the right answer in any text of the turn."""

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        return self.end(binary_score(parsed.text.count(task.spec["answer"]) == 1))


def test_an_answer_that_is_read_out_of_calls_is_found() -> None:
    env = environment("math")
    own = replace(env, entry_point=f"{__name__}:Reads", reference=lambda task: [task.spec["answer"]])
    tasks = [replace(task, env=own.ref()) for task in generate_tasks(env, 4, seed=0)]
    assert INSIDE_CALLS in failed(audited(own, tasks))
    assert INSIDE_CALLS not in failed(audited(env, generate_tasks(env, 4, seed=0)))


def test_an_audit_ends_at_its_deadline() -> None:
    env = environment("math")
    with pytest.raises(TimeoutError):
        audit(env, generate_tasks(env, FEWEST, seed=0), {}, until=time.monotonic())


def _with(task: Task, **settings: Any) -> Task:
    return replace(task, env=replace(task.env, settings=replace(task.env.settings, **settings)))


def _shop(
    folder: Path, actions: list[dict[str, Any]], outputs: list[str], *, counted: str = "whole"
) -> tuple[EnvDefinition, list[Task]]:
    env = with_folder(folder, outputs=counted)
    row = {"user_id": "bob_ray_2", "instruction": "Cancel it.", "actions": actions, "outputs": outputs}
    return env, [replace(rows.load(row, folder=folder), env=env.ref(), key="0")]

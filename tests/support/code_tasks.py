"""Coding tasks from rows, and episodes on them with given answers."""

from dataclasses import replace
from typing import Any

from support.bound import bound

from temper.envs.coding.env import CodeEnv, configure
from temper.envs.core.row_format import load_row
from temper.envs.core.step_result import GymStep
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF


def task_of(row: dict[str, Any], *, options: dict[str, Any] | None = None, **settings: Any) -> Task:
    """Return a row's task without thinking, with these options and settings."""
    env = configure(options or {})
    return bound(replace(load_row(env.formats, row), thinking=OFF), env, **settings)


def play(task: Task, *answers: str) -> GymStep:
    """The last step of an episode with these answers."""
    env = CodeEnv()
    env.reset(options={"task": replace(task, thinking=OFF)})
    for answer in answers[:-1]:
        assert env.step(answer)[2:4] == (False, False)
    return env.step(answers[-1])


def reward(task: Task, answer: str) -> float:
    """The reward of an answer in one turn."""
    return play(task, answer)[1]

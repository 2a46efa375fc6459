"""Coding tasks of rows, and episodes on them with given answers."""

from dataclasses import replace
from typing import Any

from bound import bound

from envs.coding.env import ENVIRONMENT, CodeEnv
from envs.core.row_format import load_row
from envs.core.step_result import GymStep
from envs.core.task import Task
from envs.core.thinking_mode import OFF


def task_of(row: dict[str, Any], **settings: Any) -> Task:
    """Return the task of a row without thinking, with these settings."""
    return bound(replace(load_row(ENVIRONMENT.formats, row), thinking=OFF), ENVIRONMENT, **settings)


def play(task: Task, *answers: str) -> GymStep:
    """The last step of an episode in which these answers are given."""
    env = CodeEnv()
    env.reset(options={"task": replace(task, thinking=OFF)})
    for answer in answers[:-1]:
        assert env.step(answer)[2:4] == (False, False)
    return env.step(answers[-1])


def reward(task: Task, answer: str) -> float:
    """The reward of an answer in one turn."""
    return play(task, answer)[1]

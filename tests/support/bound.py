"""Tasks as a run has them: bound to their environment, with a test's settings."""

import random
from dataclasses import replace
from typing import Any

import gymnasium

from temper.envs.catalog import configure_env, environment, make_env
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.row_format import load_row
from temper.envs.core.task import Task
from temper.envs.core.turn_text import call_message, turn_text
from temper.envs.task_env import TaskEnv


def bound(task: Task, env: str | EnvDefinition, **settings: Any) -> Task:
    """Return the task in this environment. `max_turns` also limits the turns of shared tools."""
    ref = (environment(env) if isinstance(env, str) else env).ref()
    if "max_turns" in settings:
        settings = {"tool_turns": settings["max_turns"]} | settings
    return replace(task, env=replace(ref, settings=replace(ref.settings, **settings)))


def row_task(env_id: str, row: dict[str, Any], **options: Any) -> Task:
    """Return the task of a row in an environment with these options."""
    env = configure_env(env_id, options)
    return bound(load_row(env.formats, row), env)


def generated(env_id: str, options: dict[str, Any] | None = None, *, seed: int = 0, level: int = 1) -> Task:
    """Return a task that an environment with these options makes."""
    env = configure_env(env_id, options or {})
    assert env.generate is not None
    return bound(env.generate(random.Random(seed), level), env)


def made(env: str) -> "gymnasium.Env[str, str]":
    """Return an environment of this id."""
    return make_env(environment(env).ref())


def opened(task: Task) -> TaskEnv:
    """Return the environment of a task, with its episode begun."""
    env = make_env(task.env)
    assert isinstance(env, TaskEnv)
    env.reset(options={"task": task})
    return env


def say(content: str, *calls: tuple[str, dict[str, Any]], thinks: bool = False) -> str:
    """Return the text of a turn with these calls, each a name and its arguments."""
    made = [call_message(name, arguments) for name, arguments in calls]
    return turn_text({"content": content, "tool_calls": made}, thinks=thinks)

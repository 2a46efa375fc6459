"""Tasks as a run would have them: bound to their environment, with settings of the test's."""

from dataclasses import replace
from typing import Any

import gymnasium

from temper.envs.catalog import environment, make_env
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.task import Task


def bound(task: Task, env: str | EnvDefinition, **settings: Any) -> Task:
    """Return the task as one of this environment; a `max_turns` is also that of shared tools."""
    ref = (environment(env) if isinstance(env, str) else env).ref()
    if "max_turns" in settings:
        settings = {"tool_turns": settings["max_turns"]} | settings
    return replace(task, env=replace(ref, settings=replace(ref.settings, **settings)))


def made(env: str) -> "gymnasium.Env[str, str]":
    """Return an environment of this id."""
    return make_env(environment(env).ref())

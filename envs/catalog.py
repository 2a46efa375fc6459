"""The environments by id.

An unlisted id is the name of a Python module that defines `ENVIRONMENT`. This adds an environment without changing this
file.
"""

import importlib
import importlib.util
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium

from temper.envs.coding import env as coding
from temper.envs.core.bounds import suggest_name
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.task import EnvRef, Task
from temper.envs.games import env as games
from temper.envs.mathematics import env as mathematics
from temper.envs.multi_turn_calls import env as multi_turn_calls
from temper.envs.puzzles import env as puzzles
from temper.envs.questions import (
    anytime,
    instruction_following,
    multiple_choice,
    needles,
    rows,
    search,
    short_answer,
    structured_output,
)
from temper.envs.remote import nemo_gym, openenv
from temper.envs.retail import env as retail
from temper.envs.task_env import TaskEnv
from temper.envs.tasksets import env as tasksets
from temper.envs.tool_use import env as tool_use
from temper.envs.workspace import env as workspace

ENVIRONMENTS: dict[str, EnvDefinition] = {
    env.id: env
    for env in (
        mathematics.ENVIRONMENT,
        coding.ENVIRONMENT,
        tool_use.ENVIRONMENT,
        workspace.ENVIRONMENT,
        multi_turn_calls.ENVIRONMENT,
        retail.ENVIRONMENT,
        puzzles.ENVIRONMENT,
        games.ENVIRONMENT,
        anytime.ENVIRONMENT,
        instruction_following.ENVIRONMENT,
        multiple_choice.ENVIRONMENT,
        needles.ENVIRONMENT,
        rows.ENVIRONMENT,
        search.ENVIRONMENT,
        short_answer.ENVIRONMENT,
        structured_output.ENVIRONMENT,
        nemo_gym.ENVIRONMENT,
        openenv.ENVIRONMENT,
        tasksets.ENVIRONMENT,
    )
}


def environment(env_id: str) -> EnvDefinition:
    """Return the environment of an id or module. Raise `ValueError` with the known ids if there is none."""
    return ENVIRONMENTS.get(env_id) or _own(env_id)


def configure_env(env_id: str, options: Mapping[str, Any]) -> EnvDefinition:
    """Return the environment of an id with options. Raise `ValueError` if they are wrong or not supported."""
    env = environment(env_id)
    if env.configure is not None:
        return env.configure(options)
    if options:
        raise ValueError(f"environment {env_id!r} takes no options; remove {', '.join(options)}")
    return env


def _own(module: str) -> EnvDefinition:
    """Return the `ENVIRONMENT` of a module on the Python path, which includes the current folder."""
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        found = False
    try:
        env = getattr(importlib.import_module(module), "ENVIRONMENT", None) if found else None
    except Exception as error:  # a user's module may raise anything
        raise ValueError(f"environment {module!r} can't be imported ({type(error).__name__}: {error})") from error
    if isinstance(env, EnvDefinition):
        return env
    raise ValueError(
        f"unknown environment {module!r}; use one of {', '.join(ENVIRONMENTS)}, "
        f"or the name of a module of the current folder that defines ENVIRONMENT{suggest_name(module, ENVIRONMENTS)}"
    )


def _drawn(generate: Callable[[random.Random, int], Task], ref: EnvRef, rng: random.Random) -> Task:
    return replace(generate(rng, 1), env=ref)


def env_class(ref: EnvRef) -> Callable[[], gymnasium.Env[str, str]]:
    """Return a factory of the environment. Raise any error of its module, and `ValueError` if the tasks have no
    environment.
    """
    module, _, name = ref.entry_point.partition(":")
    if not name:
        raise ValueError(f"tasks of {ref.name!r} have no environment: the entry point is {ref.entry_point!r}")
    made: Callable[[], gymnasium.Env[str, str]] = getattr(importlib.import_module(module), name)
    return made


def make_env(ref: EnvRef) -> gymnasium.Env[str, str]:
    return env_class(ref)()


def make_drawing_env(
    definition: EnvDefinition, draw: Callable[[random.Random], Task] | None = None
) -> gymnasium.Env[str, str]:
    """Make an environment whose `reset` draws a task if none is passed, by `draw` or by its own generator."""
    ref, generate = definition.ref(), definition.generate
    if draw is None:
        if generate is None:
            raise ValueError(f"environment {definition.id!r} generates no tasks; pass a function that draws one")
        draw = partial(_drawn, generate, ref)
    env = make_env(ref)
    if isinstance(env, TaskEnv):
        env.draw = draw
    return env

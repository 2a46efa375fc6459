"""The environments by id: how each is made, where its tasks come from, who demonstrates."""

import difflib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium

from envs import arithmetic, function_rows, lookups, program_rows, programs
from envs.task import Message, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One environment: `generate` makes a task, `demonstrate` solves a generated one, `load` reads a row of data."""

    id: str
    gym_id: str
    entry_point: str
    generate: Callable[[random.Random, int], Task]
    load: Callable[[dict[str, Any], str], Task]
    demonstrate: Callable[[Task], list[Message]] | None
    runs_programs: bool = False
    """Whether it executes programs that the model wrote, in the sandbox."""


ENVIRONMENTS: dict[str, Environment] = {
    "math": Environment(
        id="math",
        gym_id="temper/Math-v0",
        entry_point="envs.math_env:MathEnv",
        generate=arithmetic.generate,
        load=arithmetic.load,
        demonstrate=arithmetic.demonstrate,
    ),
    "code": Environment(
        id="code",
        gym_id="temper/Code-v0",
        entry_point="envs.code_env:CodeEnv",
        generate=programs.generate,
        load=program_rows.load,
        demonstrate=programs.demonstrate,
        runs_programs=True,
    ),
    "tool_use": Environment(
        id="tool_use",
        gym_id="temper/ToolUse-v0",
        entry_point="envs.tool_env:ToolEnv",
        generate=lookups.generate,
        load=function_rows.load,
        demonstrate=lookups.demonstrate,
    ),
}

for _environment in ENVIRONMENTS.values():
    gymnasium.register(_environment.gym_id, entry_point=_environment.entry_point, order_enforce=False)


def environment(env_id: str) -> Environment:
    """The environment of this id; ValueError with the known ids for any other."""
    if env_id in ENVIRONMENTS:
        return ENVIRONMENTS[env_id]
    nearest = difflib.get_close_matches(env_id, ENVIRONMENTS, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(f"unknown environment {env_id!r}; there are {', '.join(ENVIRONMENTS)}{hint}")


def make_env(env_id: str) -> gymnasium.Env[str, str]:
    """A new single-use environment, without gymnasium's per-step checks."""
    return gymnasium.make(environment(env_id).gym_id, disable_env_checker=True)

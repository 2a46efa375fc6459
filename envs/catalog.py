"""The environments by id: how each is made, where its tasks come from, who solves them.

An id that is not listed here is the name of a Python module with an `ENVIRONMENT` of its own: that is how an
environment is added without touching this file.
"""

import difflib
import importlib
import importlib.util
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from envs.coding import exercises, rows_humaneval
from envs.coding import gold as code_gold
from envs.core.definition import PARTS, EnvDefinition
from envs.core.row_format import RowFormat, has_fields
from envs.games import env as gym_env
from envs.mathematics import arithmetic
from envs.mathematics import gold as math_gold
from envs.mathematics import rows as math_rows
from envs.puzzles import env as puzzles
from envs.remote import env as http_env
from envs.retail import env as retail
from envs.task_env import DEFAULT_TURNS
from envs.tool_use import function_rows, lookups
from envs.tool_use import gold as tool_gold

ENVIRONMENTS: dict[str, EnvDefinition] = {
    env.id: env
    for env in (
        EnvDefinition(
            id="math",
            entry_point="envs.mathematics.env:MathEnv",
            generate=arithmetic.generate,
            formats=math_rows.FORMATS,
            demonstrate=arithmetic.demonstrate,
            gold=math_gold.gold,
            corruptions=math_gold.corruptions,
            parts=(*PARTS, "echo"),
            max_turns=1,
        ),
        EnvDefinition(
            id="code",
            entry_point="envs.coding.env:CodeEnv",
            generate=exercises.generate,
            formats=rows_humaneval.FORMATS,
            demonstrate=exercises.demonstrate,
            gold=code_gold.gold,
            corruptions=code_gold.corruptions,
            parts=(*PARTS, "tests"),
            max_turns=1,
            runs_programs=True,
        ),
        EnvDefinition(
            id="tool_use",
            entry_point="envs.tool_use.env:ToolEnv",
            generate=lookups.generate,
            formats=(RowFormat(name="bfcl", matches=has_fields("question", "function"), load=function_rows.load),),
            demonstrate=lookups.demonstrate,
            gold=tool_gold.gold,
            corruptions=tool_gold.corruptions,
            parts=(*PARTS, "tool_errors"),
            max_turns=DEFAULT_TURNS,
        ),
        retail.ENVIRONMENT,
        puzzles.ENVIRONMENT,
        gym_env.ENVIRONMENT,
        http_env.ENVIRONMENT,
    )
}

for _definition in ENVIRONMENTS.values():
    gymnasium.register(_definition.gym_id, entry_point=_definition.entry_point, order_enforce=False)


def environment(env_id: str) -> EnvDefinition:
    """The environment of this id, or of this module; ValueError with the known ids for any other."""
    return ENVIRONMENTS.get(env_id) or _own(env_id)


def configured(env_id: str, options: Mapping[str, Any]) -> EnvDefinition:
    """The environment of this id with these options; ValueError where they are wrong or not taken."""
    env = environment(env_id)
    if env.configure is not None:
        return env.configure(options)
    if options:
        raise ValueError(f"environment {env_id!r} takes no options, it was given {', '.join(options)}")
    return env


def _own(module: str) -> EnvDefinition:
    """The `ENVIRONMENT` of a module on the Python path, the current folder included."""
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        found = False
    env = getattr(_imported(module), "ENVIRONMENT", None) if found else None
    if isinstance(env, EnvDefinition):
        return env
    nearest = difflib.get_close_matches(module, ENVIRONMENTS, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(
        f"unknown environment {module!r}; there are {', '.join(ENVIRONMENTS)}{hint}; "
        f"for one of your own give the name of a module that defines ENVIRONMENT"
    )


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:  # whatever a module of a user's own raises
        raise ValueError(f"environment {module!r} can't be imported ({type(error).__name__}: {error})") from error


def make_env(env_id: str) -> gymnasium.Env[str, str]:
    """A new single-use environment, without gymnasium's per-step checks."""
    env = environment(env_id)
    spec = EnvSpec(id=env.gym_id, entry_point=env.entry_point, order_enforce=False, disable_env_checker=True)
    return gymnasium.make(spec)

"""A reward function of the user: `(answer, row) -> float | dict[str, float]`, sync or async."""

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from temper.envs.core.errors import GraderError, describe_error
from temper.envs.core.functions import load_function, run_function
from temper.envs.core.task import Task
from temper.rewards.score import LENGTH, Score

REWARD = "reward"
"""The part of a function that returns a number."""
ROW = "row"
"""Part of a spec: the row of data of the task."""


def judge(task: Task, answer: str) -> Score:
    """Return the score of an answer, the text after the reasoning. A truncated answer is empty.

    The function gets a copy of the row of data, or of the spec of a generated task. Raise `GraderError` if it raises or
    returns no finite numbers.
    """
    settings = task.env.settings
    name = settings.reward
    assert name is not None
    row = deepcopy(dict(task.spec.get(ROW, task.spec)))  # other answers to the task get the row too
    try:
        returned = run_function(load_function(name), answer, row)
    except (Exception, SystemExit) as error:
        raise GraderError(f"{name} raised {describe_error(error)}") from error
    given = returned if isinstance(returned, Mapping) else {REWARD: returned}
    if not given:
        raise GraderError(f"{name} returned no number; return a finite number, or a dict of them by name")
    if LENGTH in given and settings.length_limit is not None:
        raise GraderError(f"{name} returned the part {LENGTH}, which length_limit sets; rename the part")
    parts = {str(part): _number(value, name) for part, value in given.items()}
    return Score(parts=parts, detail=f"answered {answer[:80]}")


def _number(value: Any, name: str) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise GraderError(f"{name} returned {value!r:.100}; return a finite number, or a dict of them by name")
    return number

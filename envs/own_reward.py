"""A reward function of the user: `(answer, row) -> float | dict[str, float]`, sync or async."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from temper.envs.core.errors import GraderError, describe_error
from temper.envs.core.functions import load_function, run_function
from temper.envs.core.step_result import require_number
from temper.envs.core.task import EnvSettings, Task
from temper.rewards.score import JUDGE, LENGTH, Score

REWARD = "reward"
"""The part of a function that returns a number."""
ROW = "row"
"""Part of a spec: the row of data of the task."""


def judge(task: Task, answer: str) -> Score:
    """Return the score of an answer, the text after the reasoning. A truncated answer is empty.

    The function gets a copy of the row of data, or of the spec of a generated task. Raise `GraderError` if it raises or
    returns no finite numbers.
    """
    name = task.env.settings.reward
    assert name is not None
    try:
        returned = run_function(load_function(name), answer, copy_row(task))
    except (Exception, SystemExit) as error:
        raise GraderError(f"{name} raised {describe_error(error)}") from error
    return Score(parts=read_parts(returned, name, task.env.settings), detail=f"answered {answer[:80]}")


def copy_row(task: Task) -> dict[str, Any]:
    """Return a copy of the row of data, or of the spec of a generated task: other answers to the task get it too."""
    return deepcopy(dict(task.spec.get(ROW, task.spec)))


def read_parts(returned: Any, name: str, settings: EnvSettings) -> dict[str, float]:
    """Return the parts that the function of this name has returned. Raise `GraderError` unless they are finite numbers."""
    given = returned if isinstance(returned, Mapping) else {REWARD: returned}
    if not given:
        raise GraderError(f"{name} returned no number; return a finite number, or a dict of them by name")
    if LENGTH in given and settings.length_limit is not None:
        raise GraderError(f"{name} returned the part {LENGTH}, which length_limit sets; rename the part")
    if JUDGE in given and settings.judge is not None:
        raise GraderError(f"{name} returned the part {JUDGE}, which the judge gives; rename the part")
    if not isinstance(returned, Mapping):
        return {REWARD: require_number(returned, f"the value that {name} returned")}
    return {
        str(part): require_number(value, f"the part {part!r} that {name} returned") for part, value in given.items()
    }

"""The score of an answer: an outcome and named reward parts, and the reward as their weighted sum."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from temper.rewards.pickling import pickle_in_order

CORRECT = "correct"
FORMAT = "format"
LENGTH = "length"
JUDGE = "judge"
JUDGE_COSTS = ("judge_requests", "judge_tokens")
"""Evidence of a judged answer, and metrics."""
TOOL_ERRORS = "tool_errors"
WEIGHTS = {CORRECT: 1.0}
"""The default weights. A part without a weight is only logged."""


class Outcome(Enum):
    """How an episode ended for the model. Every outcome carries a real reward."""

    OK = "ok"  # the answer is right
    WRONG = "wrong"  # the answer is wrong, missing or malformed
    POLICY_FAULT = "policy_fault"  # the model's program hit a limit, crashed or did something forbidden
    TRUNCATED = "cut"  # a limit on turns or tokens ended it; the environment gives the reward


@pickle_in_order
@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of one answer. `detail` is one line for people, `evidence` records how it was graded (grader, isolation).

    `outcome` is None if nothing was graded, or if an external environment leaves it open.
    """

    outcome: Outcome | None = None
    parts: dict[str, float] = field(default_factory=dict)
    detail: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)

    def with_parts(self, parts: Mapping[str, float]) -> "Score":
        """Return the score with further parts, or with other values of its parts."""
        return replace(self, parts={**self.parts, **parts})


def binary_score(correct: bool, *, well_formed: bool = True, detail: str = "") -> Score:
    """Return a right or wrong score with the parts `correct` and `format`."""
    parts = {CORRECT: float(correct), FORMAT: float(well_formed)}
    return Score(outcome=Outcome.OK if correct else Outcome.WRONG, parts=parts, detail=detail)


def policy_fault(detail: str) -> Score:
    """Return the score of a fault of the model's own program: no credit."""
    return Score(outcome=Outcome.POLICY_FAULT, parts={CORRECT: 0.0, FORMAT: 1.0}, detail=detail)


def weigh_reward(parts: Mapping[str, float], weights: Mapping[str, float] = WEIGHTS) -> float:
    """Return the sum of weight times value over the parts. A missing part adds nothing."""
    return sum(weights.get(name, 0.0) * value for name, value in parts.items())


def correctness(parts: Mapping[str, float], reward: float | None) -> float:
    """Return the part `correct`, or the reward if there is no such part. 1 is right."""
    return parts.get(CORRECT, reward or 0.0)


def brevity(length: int, *, limit: int) -> float:
    """Return 1 up to the limit, then a linear decrease to 0 at twice the limit."""
    return min(1.0, max(0.0, 2.0 - length / limit))


def error_rate(errors: int, calls: int) -> float:
    """Return the share of failed calls, or 0 without calls."""
    return errors / calls if calls else 0.0

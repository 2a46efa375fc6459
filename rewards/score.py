"""What a verifier says about an answer: an outcome and named reward parts; and the reward that these are worth."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

CORRECT = "correct"
FORMAT = "format"
LENGTH = "length"
TOOL_ERRORS = "tool_errors"
WEIGHTS: Mapping[str, float] = {CORRECT: 1.0}
"""What a reward is where nothing else is asked for. A part without a weight is only logged."""


class Outcome(Enum):
    """How an episode ended for the model. All of them carry a real reward."""

    OK = "ok"  # the answer is right
    WRONG = "wrong"  # the answer is wrong, missing or malformed
    POLICY_FAULT = "policy_fault"  # the model's own program ran out of a limit, crashed or did what is forbidden
    TRUNCATED = "cut"  # a limit on turns or tokens ended it; the reward is what the environment says that it is worth


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The judgement of one answer; `detail` is one line for people, `evidence` how it was reached (grader, isolation).

    There is no `outcome` where nothing was judged, and where an environment that is not Temper's own leaves it open.
    """

    outcome: Outcome | None = None
    parts: dict[str, float] = field(default_factory=dict)
    detail: str = ""
    evidence: dict[str, str | float] = field(default_factory=dict)


def binary_score(correct: bool, *, well_formed: bool = True, detail: str = "") -> Score:
    """Return the score right or wrong, with the parts `correct` and `format`."""
    parts = {CORRECT: float(correct), FORMAT: float(well_formed)}
    return Score(outcome=Outcome.OK if correct else Outcome.WRONG, parts=parts, detail=detail)


def policy_fault(detail: str) -> Score:
    """Return the score on what the model itself broke: no credit."""
    return Score(outcome=Outcome.POLICY_FAULT, parts={CORRECT: 0.0, FORMAT: 1.0}, detail=detail)


def weighted_reward(parts: Mapping[str, float], weights: Mapping[str, float] = WEIGHTS) -> float:
    """Return the reward: the sum over the parts that are there of weight times value; a missing part adds nothing."""
    return sum(weights.get(name, 0.0) * value for name, value in parts.items())


def correctness(parts: Mapping[str, float], reward: float | None) -> float:
    """Return how right an answer is, 1 being right: its part `correct`, or its reward where there is no such part."""
    return parts.get(CORRECT, reward or 0.0)


def brevity(length: int, *, limit: int) -> float:
    """Return 1 up to the limit, then fall in a straight line to 0 at twice the limit; in the unit of the limit."""
    return min(1.0, max(0.0, 2.0 - length / limit))


def error_rate(errors: int, calls: int) -> float:
    """Return the share of calls that went wrong; 0 where there were none."""
    return errors / calls if calls else 0.0

"""Named parts of a reward, and their weighted sum."""

from collections.abc import Mapping

CORRECT = "correct"
FORMAT = "format"
LENGTH = "length"
TOOL_ERRORS = "tool_errors"
WEIGHTS: Mapping[str, float] = {CORRECT: 1.0}
"""What a reward is where nothing else is asked for. A part without a weight is only logged."""


def weighted(parts: Mapping[str, float], weights: Mapping[str, float] = WEIGHTS) -> float:
    """The reward: the sum over the parts that are there of weight times value; a part that is missing adds nothing."""
    return sum(weights.get(name, 0.0) * value for name, value in parts.items())


def correctness(parts: Mapping[str, float], reward: float | None) -> float:
    """How right an answer is, 1 being right: the part `correct`, or for an environment without parts the reward."""
    return parts.get(CORRECT, reward or 0.0)


def brevity(length: int, *, limit: int) -> float:
    """1 up to the limit, then falling in a straight line to 0 at twice the limit; in the unit of the limit."""
    return min(1.0, max(0.0, 2.0 - length / limit))


def share_of(errors: int, calls: int) -> float:
    """The share of calls that went wrong; 0 where there were none."""
    return errors / calls if calls else 0.0

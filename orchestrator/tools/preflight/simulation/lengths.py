"""Tokens of answers: log-normal around a mean, drawn by the number of a ticket, the same in every run.

A task makes its answers alike: `OF_TASK` of the variance of the logarithm is the task's, the rest the answers'.
"""

import math
import random
from dataclasses import dataclass, replace
from statistics import NormalDist

OF_TASK = 0.5
"""Share of the variance of the logarithm that the answers to a task have in common; assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Lengths with a mean and a tail: `tail` is the standard deviation of their logarithm, 0 for answers of one length.

    None is above `longest`. The mean is that before this cut; the mean of drawn lengths may be lower.
    """

    mean: float
    tail: float
    longest: float
    seed: int

    def of(self, ticket: int, answers: int) -> list[int]:
        """Return the tokens of each of so many answers to the task of a ticket."""
        draw = random.Random(f"{self.seed}/{ticket}")
        centre = math.log(self.mean) - self.tail**2 / 2
        task = centre + self.tail * math.sqrt(OF_TASK) * draw.gauss(0, 1)
        own = self.tail * math.sqrt(1 - OF_TASK)
        return [self._cut(math.exp(task + own * draw.gauss(0, 1))) for _ in range(answers)]

    def _cut(self, length: float) -> int:
        return max(1, round(min(length, self.longest)))


def with_mean(lengths: LogNormal, mean: float) -> LogNormal:
    """Return lengths whose mean after the cut is `mean`, by bisection. Raise `ValueError` if it is not below `longest`."""
    if mean >= lengths.longest:
        raise ValueError(
            f"the mean of {mean:,.0f} tokens is not below the longest answer of {lengths.longest:,.0f}; lower "
            f"--assume answer_tokens"
        )
    if not lengths.tail:
        return replace(lengths, mean=mean)
    low, high = mean, mean * math.exp(4 * lengths.tail**2 + 4)
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cut_mean(replace(lengths, mean=middle)) < mean else (low, middle)
    return replace(lengths, mean=high)


def cut_mean(lengths: LogNormal) -> float:
    """Return the mean of log-normal lengths none of which is above the longest.

    E[min(X, c)] = E[X] Phi(d - s) + c (1 - Phi(d)), with s the deviation of the logarithm and d = (log c - its mean) / s.
    """
    if not lengths.tail:
        return min(lengths.mean, lengths.longest)
    deviation, normal = lengths.tail, NormalDist()
    cut = (math.log(lengths.longest) - math.log(lengths.mean) + deviation**2 / 2) / deviation
    return lengths.mean * normal.cdf(cut - deviation) + lengths.longest * (1 - normal.cdf(cut))

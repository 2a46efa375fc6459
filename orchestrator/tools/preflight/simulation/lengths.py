"""How many tokens answers have: log-normal around a mean, or those of a run, by the number of a ticket, always the same ones.

What a task asks for makes its answers alike: of the variance of the logarithm `OF_TASK` is the task's, the rest the answers'.
"""

import math
import random
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Protocol

OF_TASK = 0.5
"""Share of the variance of the logarithm that the answers to a task have in common; assumed."""


class Lengths(Protocol):
    """Says how long answers are."""

    def of(self, ticket: int, answers: int) -> list[int]:
        """Return the tokens of each of so many answers to the task of a ticket."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Lengths with a mean and a tail: `tail` is the standard deviation of their logarithm, 0 for answers of one length.

    None is above `longest`; the mean is that before this cut, so that the mean of what is drawn may be lower.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Lengths of a run's groups, drawn group by group: answers to one task stay together."""

    groups: tuple[tuple[int, ...], ...]
    seed: int

    def of(self, ticket: int, answers: int) -> list[int]:
        """Return the tokens of each of so many answers to the task of a ticket."""
        draw = random.Random(f"{self.seed}/{ticket}")
        group = draw.choice(self.groups)
        return list(group) if len(group) == answers else draw.choices(group, k=answers)


def with_mean(lengths: LogNormal, mean: float) -> LogNormal:
    """Return lengths whose mean after the cut is `mean`, by bisection.

    Raise `ValueError` where the longest answer leaves no room for it.
    """
    if mean >= lengths.longest:
        raise ValueError(
            f"answers of {mean:,.0f} tokens in the mean, of which none may have more than {lengths.longest:,.0f}: give a lower "
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

"""Two models' answers to the same tasks: the difference of their accuracies, how sure it is, and how many tasks would show one.

A task is one observation: its answers are alike, so that the share of them that is right counts once. Only tasks that both
evaluations asked and scored are compared; how many are left out, and why, is said.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil, lcm, nan
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np

from temper.orchestrator.evaluation.intervals import paired_interval

LEVEL = 0.95
POWER = 0.8
DIFFERENCES = (0.01, 0.02, 0.05, 0.1)
"""The differences of accuracy for which a comparison says how many tasks would show them."""
FINEST = 2520
"""The sign-flip test is exact where the differences are multiples of 1 / FINEST or coarser; finer ones are rounded to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """The answers to one task. `content` is a hash of all that makes the task, in which equal keys may differ."""

    key: str
    content: str
    right: int
    scored: int
    """Answers with a score."""
    failed: int = 0
    """Answers without one, for reasons outside the model."""

    @property
    def accuracy(self) -> Fraction:
        """The share of right answers among those with a score, of which there must be one."""
        return Fraction(self.right, self.scored)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparison:
    """The second evaluation against the first, over the tasks that both have. Accuracies are shares; NaN without a task."""

    tasks: int
    first: float
    second: float
    difference: float
    """Mean over the tasks of the second's accuracy less the first's."""
    interval: tuple[float, float]
    """Its 95 % interval over tasks, `paired_interval`, which has a width even if no task differs."""
    p: float
    """How often so large a mean, of either sign, comes about where the two are alike: the sign-flip test."""
    deviation: float
    """Standard deviation of the differences of single tasks; NaN for fewer than two."""
    needed: dict[str, int | None]
    """How many tasks would show a difference of so much with power 0.8; None where that can't be said."""
    only_first: int
    only_second: int
    differing: int
    unscored: int

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"interval": list(self.interval)}

    @property
    def left_out(self) -> str:
        """What was not compared, in words; empty where everything was."""
        counts = (
            (self.only_first, "only in the first"),
            (self.only_second, "only in the second"),
            (self.differing, "with the same key but another content"),
            (self.unscored, "without a score"),
        )
        return ", ".join(f"{count} {what}" for count, what in counts if count)


def compare_tasks(first: Sequence[TaskScore], second: Sequence[TaskScore]) -> TaskComparison:
    """Compare two evaluations of one environment task by task, paired by their keys."""
    others = {task.key: task for task in second}
    both = [(one, others[one.key]) for one in first if one.key in others]
    same = [(one, other) for one, other in both if one.content == other.content]
    scored = [(one.accuracy, other.accuracy) for one, other in same if one.scored and other.scored]
    differences = [after - before for before, after in scored]
    known = bool(differences)
    deviation = stdev(map(float, differences)) if len(differences) > 1 else nan
    return TaskComparison(
        tasks=len(scored),
        first=fmean(before for before, _ in scored) if known else nan,
        second=fmean(after for _, after in scored) if known else nan,
        difference=float(sum(differences) / len(differences)) if known else nan,
        interval=paired_interval([float(one) for one in differences]) if known else (nan, nan),
        p=sign_flip_p(differences) if known else nan,
        deviation=deviation,
        needed={f"{size:g}": tasks_needed(deviation, size) for size in DIFFERENCES},
        only_first=len(first) - len(both),
        only_second=len(second) - len(both),
        differing=len(both) - len(same),
        unscored=len(same) - len(scored),
    )


def compare_envs(
    first: Mapping[str, Sequence[TaskScore]], second: Mapping[str, Sequence[TaskScore]]
) -> dict[str, TaskComparison]:
    """Compare every environment of which both evaluations have the single tasks."""
    return {env: compare_tasks(first[env], second[env]) for env in sorted(first) if env in second}


def sign_flip_p(differences: Sequence[Fraction]) -> float:
    """Return the two-sided p value of a mean difference, by the randomisation test for pairs; 1 where nothing differs.

    Were the two models alike, either could have given either of a task's two results: all 2^n ways to set the signs of the
    differences are as likely, and p is the share of them with so large a sum. It is exact, not drawn: the sum's characteristic
    function is the product of cos(t d), and its inverse Fourier transform on the grid of the differences is the distribution.
    With one answer a task it is McNemar's exact test. Fisher, The Design of Experiments (1935), section 21.
    """
    unit = min(FINEST, lcm(*(one.denominator for one in differences)))
    signed = [step for one in differences if (step := round(one * unit))]
    observed, reach = abs(sum(signed)), sum(map(abs, signed))
    if not observed:
        return 1.0
    points = 2 * reach + 1
    turns = np.arange(reach + 1, dtype=np.int64)
    transform = np.ones(reach + 1)
    for step, count in Counter(map(abs, signed)).items():
        transform *= np.cos(2 * np.pi / points * (turns * step % points)) ** count
    chances = np.fft.irfft(transform, n=points)
    tail = 2 * float(chances[observed : reach + 1].sum())
    return min(1.0, max(tail, 2.0 ** (1 - len(signed))))  # all of one sign are among them: less is rounding


def tasks_needed(deviation: float, difference: float) -> int | None:
    """Return how many tasks show a true difference of so much at the 5 % level, two-sided, with the power `POWER`.

    n = ((z(1 - 0.05 / 2) + z(POWER)) * deviation / difference)^2 with the deviation of the differences of single tasks; None
    where that is not known, or 0. Miller, Adding Error Bars to Evals, arXiv 2411.00640 (2024), sample size for paired
    differences: its variance between tasks and of the answers to a task are what the deviation here holds together.
    """
    if not deviation > 0:
        return None
    normal = NormalDist()
    quantiles = normal.inv_cdf((1 + LEVEL) / 2) + normal.inv_cdf(POWER)
    return max(2, ceil((quantiles * deviation / difference) ** 2))

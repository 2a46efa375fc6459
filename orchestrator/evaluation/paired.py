"""Comparison of two models on the same tasks: the difference of accuracies, its certainty, and the tasks needed to show one.

A task is one observation, since its answers are similar. Only tasks that both evaluations scored are compared. The others are
counted by reason.
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
"""Differences of accuracy for which a comparison reports the number of tasks needed."""
FINEST = 2520
"""The sign-flip test is exact for multiples of 1 / FINEST or coarser. Finer differences are rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """The answers to one task. `content` is a hash of the task's content, which may differ for equal keys."""

    key: str
    content: str
    right: int
    scored: int
    """Scored answers."""
    failed: int = 0
    """Failed answers, for reasons outside the model."""

    @property
    def accuracy(self) -> Fraction:
        """The share of right answers among scored ones, at least one."""
        return Fraction(self.right, self.scored)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparison:
    """The second evaluation compared with the first, over common tasks. Accuracies are shares, NaN without a task."""

    tasks: int
    first: float
    second: float
    difference: float
    """Mean over tasks of the second's accuracy minus the first's."""
    interval: tuple[float, float]
    """Its 95 % interval over tasks (`paired_interval`), which always has a width."""
    p: float
    """Probability of such a large mean, of either sign, for equal models: the sign-flip test."""
    deviation: float
    """Standard deviation of the differences of tasks, NaN for fewer than two."""
    needed: dict[str, int | None]
    """Tasks needed to show a difference with power 0.8; None if unknown."""
    only_first: int
    only_second: int
    differing: int
    unscored: int

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"interval": list(self.interval)}

    @property
    def left_out(self) -> str:
        """The tasks that were not compared, by reason; empty for none."""
        counts = (
            (self.only_first, "only in the first"),
            (self.only_second, "only in the second"),
            (self.differing, "with the same key but another content"),
            (self.unscored, "without a score"),
        )
        return ", ".join(f"{count} {what}" for count, what in counts if count)


def compare_tasks(first: Sequence[TaskScore], second: Sequence[TaskScore]) -> TaskComparison:
    """Compare two evaluations of one environment, paired by the keys of tasks."""
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
    """Compare every environment whose tasks both evaluations have."""
    return {env: compare_tasks(first[env], second[env]) for env in sorted(first) if env in second}


def sign_flip_p(differences: Sequence[Fraction]) -> float:
    """Return the two-sided p value of a mean difference by the randomisation test for pairs; 1 without any difference.

    For equal models all 2^n signs of the differences are equally likely. p is the share of them with a sum as large. It is
    exact: the sum's characteristic function is the product of cos(t d), and its inverse Fourier transform on the grid of the
    differences is the distribution. With one answer a task it is McNemar's exact test. Fisher, The Design of Experiments
    (1935), section 21.
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
    return min(1.0, max(tail, 2.0 ** (1 - len(signed))))  # all of one sign count: less is rounding


def tasks_needed(deviation: float, difference: float) -> int | None:
    """Return the number of tasks that show a true difference at the 5 % level, two-sided, with power `POWER`.

    n = ((z(1 - 0.05 / 2) + z(POWER)) * deviation / difference)^2 with the deviation of the differences of tasks; None if that
    is unknown or 0. Miller, Adding Error Bars to Evals, arXiv 2411.00640 (2024), sample size for paired differences. The
    deviation combines its variances between tasks and between answers to a task.
    """
    if not deviation > 0:
        return None
    normal = NormalDist()
    quantiles = normal.inv_cdf((1 + LEVEL) / 2) + normal.inv_cdf(POWER)
    return max(2, ceil((quantiles * deviation / difference) ** 2))

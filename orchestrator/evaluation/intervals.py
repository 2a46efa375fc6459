"""95 % intervals of accuracies and their differences. They have a width for any number of tasks."""

from collections.abc import Sequence
from math import isnan, nan, sqrt
from statistics import stdev

Interval = tuple[float, float]
Z95 = 1.96
"""Half-width of the 95 % interval of a normal distribution, in standard deviations."""
T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The same for Student's t with 1, 2, ... 30 degrees of freedom."""


def t95(freedom: int) -> float:
    """Return the half-width of the 95 % interval of Student's t in standard deviations, for 1 or more degrees of freedom.

    Beyond the table it uses the Cornish-Fisher expansion to 1 / freedom^2: Abramowitz and Stegun, 26.7.5.
    """
    if freedom <= len(T95):
        return T95[freedom - 1]
    z = Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean, NaN for fewer than two values."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else nan


def accuracy_interval(accuracy: float, *, stderr: float, tasks: int, samples: int) -> Interval:
    """Return the 95 % interval of an accuracy over tasks, the wider of two, or NaN without a sample.

    Student's interval over `tasks` accounts for similar answers to a task, but has no width if all tasks have the same
    accuracy. Wilson's interval over `samples` has one even if all answers are right.
    """
    if not samples:
        return nan, nan
    wilson = wilson_interval(accuracy, samples)
    scored = min(tasks, samples)
    if isnan(stderr) or scored < 2:
        return wilson
    half = t95(scored - 1) * stderr
    student = max(0.0, accuracy - half), min(1.0, accuracy + half)
    return max(student, wilson, key=lambda ends: ends[1] - ends[0])


def wilson_interval(share: float, count: int) -> Interval:
    """Return the 95 % interval of a share of `count` trials, 1 or more. It contains the share, also after rounding.

    Wilson, Probable Inference, the Law of Succession, and Statistical Inference, JASA 22 (1927).
    """
    square = Z95**2 / count
    middle = (share + square / 2) / (1 + square)
    half = Z95 * sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def paired_interval(differences: Sequence[float]) -> Interval:
    """Return the 95 % interval of the mean of differences in -1 to 1, one a task, at least one.

    Two tasks are added, one without a difference and half a one of each sign. Otherwise tasks that all agree would seem
    certain. Agresti and Min, Simple improved confidence intervals for comparing matched proportions, Statistics in Medicine
    24 (2005), with Student's quantile for few tasks.
    """
    count = len(differences) + 2
    mean = sum(differences) / count
    variance = (sum(value * value for value in differences) + 1) / count - mean * mean
    half = t95(count - 1) * sqrt(variance / count)
    return max(-1.0, mean - half), min(1.0, mean + half)

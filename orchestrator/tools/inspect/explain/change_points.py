"""Find change points: places where two straight lines fit a series and one line does not. Pure functions.

Each place is tried as the border of two lines with their own level and slope, against one line (Quandt, "The Estimation of the
Parameters of a Linear Regression System Obeying Two Separate Regimes", 1958). The series is cut at the best border, and each
part is searched again (binary segmentation: Scott and Knott, "A Cluster Analysis Method for Grouping Means in the Analysis of
Variance", 1974). So a steady rise has no change point. A positive series over more than a decade must also change in its
logarithms, in which steady growth is a line.

For Gaussian noise about one line, P(RSS_2 / RSS_1 <= q) = q^((n - 4) / 2) at each place. The sum over places bounds the
probability of the best one. Outliers are clipped first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]
MIN_SIDE = 5
"""Minimum number of steps on each side of a change point."""
MIN_STEPS = 2 * MIN_SIDE + 2
"""Shorter series are not searched."""
MIN_CHANGE = 3.0
"""Minimum change, in standard deviations of the noise."""
MAX_CHANGE_POINTS = 3
"""Per series. A series with more is a wave."""
CLIP = 4.0
"""Values this many standard deviations from one line are clipped."""
TO_SIGMA = 1.4826
"""The standard deviation of Gaussian noise over its median absolute deviation: 1 / Phi^-1(3/4)."""
DECADE = 10.0
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A change point. `step` is the first step after it. `before` and `after` are medians of the two parts.

    `apart` is the largest distance of the two lines from the one line. `noise` is the standard deviation about the two lines.
    """

    step: int
    before: float
    after: float
    apart: float
    noise: float

    @property
    def size(self) -> float:
        """The larger of the change and `apart`, in units of the noise. Infinite without noise."""
        change = max(abs(self.after - self.before), self.apart)
        return change / self.noise if self.noise else math.inf if change else 0.0


def find_change_points(steps: Sequence[int], values: Sequence[float], *, limit: float) -> list[ChangePoint]:
    """Return the change points of a series by step. Steps with values that are not finite are ignored.

    `limit` is the maximum probability, 0 to 1, of a change point in Gaussian noise.
    """
    known = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    if len(known) < MIN_STEPS:
        return []
    series = np.array([value for _, value in known], dtype=np.float64)
    scales = [series]
    if series.min() > 0 and series.max() > DECADE * series.min():
        scales.append(np.log(series))
    cuts: list[tuple[float, int]] = []
    _cut(scales, 0, len(series), limit, cuts)
    places = sorted(place for _, place in sorted(cuts)[:MAX_CHANGE_POINTS])
    borders = [0, *places, len(series)]
    change_points = [
        _change_point(known[place][0], series[first:place], series[place:end])
        for first, place, end in zip(borders, places, borders[2:], strict=False)
    ]
    return [change_point for change_point in change_points if change_point.size >= MIN_CHANGE]


def _cut(scales: Sequence[Series], first: int, end: int, limit: float, cuts: list[tuple[float, int]]) -> None:
    """Add the best border of a part of the series to `cuts` if it is clear, then search both sides."""
    if end - first < MIN_STEPS:
        return
    found = [_best_border(_clipped(scale[first:end])) for scale in scales]
    alarm, place = max(alarm for alarm, _ in found), found[-1][1]
    if alarm <= limit:
        cuts.append((alarm, first + place))
        _cut(scales, first, first + place, limit, cuts)
        _cut(scales, first + place, end, limit, cuts)


def _best_border(values: Series) -> tuple[float, int]:
    """Return a bound on the probability of the best border under noise about one line, and the border."""
    count = len(values)
    centred = values - values.mean()
    whole = _squares_about_lines(centred)
    borders = np.arange(MIN_SIDE, count - MIN_SIDE + 1)
    both = whole[borders] + _squares_about_lines(centred[::-1])[count - borders]
    best = int(both.argmin())
    if whole[count] <= ROUNDING * count * float(np.abs(values).max()) ** 2:
        return 1.0, int(borders[best])
    share = min(1.0, float(both[best] / whole[count]))
    return min(1.0, len(borders) * share ** ((count - 4) / 2)), int(borders[best])


def _squares_about_lines(values: Series) -> Series:
    """Return the residual sum of squares of the best line through the first n values, for each n from 0."""
    n = np.arange(1, len(values) + 1)
    times = np.arange(len(values), dtype=np.float64)
    sum_y, sum_yy, sum_ty = np.cumsum(values), np.cumsum(values**2), np.cumsum(times * values)
    spread = np.maximum(n * (n**2 - 1) / 12, 1e-12)
    slopes = np.where(n > 1, (sum_ty - (n - 1) / 2 * sum_y) ** 2 / spread, 0.0)
    return np.concatenate([[0.0], np.maximum(0.0, sum_yy - sum_y**2 / n - slopes)])


def _clipped(values: Series) -> Series:
    """Return the values with clipped outliers, so that no single step makes a change point."""
    rest = _about_line(values)
    far = CLIP * TO_SIGMA * float(np.median(np.abs(rest)))
    return values - rest + np.clip(rest, -far, far) if far else values


def _change_point(step: int, before: Series, after: Series) -> ChangePoint:
    both = np.concatenate([before, after])
    rest = np.concatenate([_about_line(before), _about_line(after)])
    rounding = ROUNDING * float(np.abs(both).max())
    apart = float(np.abs(_about_line(both) - rest).max())
    clipped = np.concatenate([_about_line(_clipped(before)), _about_line(_clipped(after))])
    noise = math.sqrt(float((clipped**2).sum()) / (len(both) - 4))
    return ChangePoint(
        step=step,
        before=float(np.median(before)),
        after=float(np.median(after)),
        apart=apart if apart > rounding else 0.0,
        noise=noise if noise > rounding else 0.0,
    )


def _about_line(values: Series) -> Series:
    times = np.arange(len(values), dtype=np.float64)
    slope, level = np.polyfit(times, values, 1)
    return np.asarray(values - (slope * times + level))

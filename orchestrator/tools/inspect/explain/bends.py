"""Where a series of numbers bends: one straight line does not fit it, and two do. Pure functions.

Every place is tried as the border between two straight lines, each with its own level and slope, against one for all (Quandt,
"The Estimation of the Parameters of a Linear Regression System Obeying Two Separate Regimes", 1958; Chow, "Tests of Equality
Between Sets of Coefficients in Two Linear Regressions", 1960). The series is cut at the best, and each part looked at again
(binary segmentation: Scott and Knott, "A Cluster Analysis Method for Grouping Means in the Analysis of Variance", 1974). So
what rises or falls steadily does not bend; a positive series over more than a decade must bend in its logarithms too, where
steady growth is a line.

False alarms: of Gaussian noise about one line, P(RSS_2 / RSS_1 <= q) = q^((n - 4) / 2) at each place, and the sum over places
bounds that of the best one. What passes has to pass again against the residuals of the one line in random orders (Freedman and
Lane, "A Nonstochastic Interpretation of Reported Significance Levels", 1983), which holds for noise of any distribution whose
order means nothing. `limit` is the largest probability of an alarm in one series.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]
FEWEST = 5
"""Steps on each side of a bend."""
FEWEST_STEPS = 2 * FEWEST + 2
"""A series with fewer is not looked at."""
MOST = 96
"""Longer series are looked at in blocks of neighbours, by their medians, and the bend is then placed among the steps. Their
first and last so many steps are looked at one by one too."""
LEAST = 3.0
"""The smallest change that is a bend, in units of the noise: a clearer one that moves less tells nobody anything."""
MOST_BENDS = 3
"""Of one series: more are no bends, but a wave."""
TO_SIGMA = 1.4826
"""The standard deviation of Gaussian noise over its median absolute deviation: 1 / Phi^-1(3/4)."""
ORDERS = 4999
"""Random orders of the residuals, and more for a limit that they can't tell."""
MOST_ORDERS = 49_999
"""No more than these: below one in so many the bound of Gaussian noise decides among series of which no order is as good."""
BATCH = 500
DECADE = 10.0
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Bend:
    """The first step after a bend, at `place` of the series. `before` and `after` are medians of the parts on both sides.

    `at` is where the second line begins, `apart` the largest distance of the two lines from the one, which is about half the
    height of a jump between two levels, and half that of a rise that falls back. `noise` is the standard deviation of what is
    left about the lines of both parts, by its median absolute deviation; `alarm` bounds the probability of a bend as clear as
    this where there is none.
    """

    place: int
    step: int
    before: float
    after: float
    at: float
    apart: float
    noise: float
    alarm: float

    @property
    def size(self) -> float:
        """The larger of the change and `apart` in units of the noise; infinite where there was none."""
        change = max(abs(self.after - self.before), self.apart)
        return change / self.noise if self.noise else math.inf if change else 0.0

    @property
    def turns(self) -> bool:
        """Whether both sides are at the same level: it has come from somewhere and goes back."""
        return abs(self.after - self.before) <= LEAST * self.noise


def bends_of(steps: Sequence[int], values: Sequence[float], *, limit: float) -> list[Bend]:
    """Return the bends of a series, in the order of its steps. Values that are not finite are left out with their steps.

    `limit` is the probability of an alarm where there is no bend, 0 to 1.
    """
    known = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    if len(known) < FEWEST_STEPS:
        return []
    series = np.array([value for _, value in known], dtype=np.float64)
    cuts = _cuts(series, limit=limit)
    chosen = sorted(sorted(cuts, key=lambda cut: cut[1])[:MOST_BENDS])
    borders = [0, *(place for place, _ in chosen), len(series)]
    found = [
        _bend([step for step, _ in known], series, (borders[part], place, borders[part + 2]), alarm)
        for part, (place, alarm) in enumerate(chosen)
    ]
    return [bend for bend in found if bend.size >= LEAST]


def _cuts(series: Series, *, limit: float) -> list[tuple[int, float]]:
    """Return clear borders, each with its alarm. Among blocks what is near an end is not seen: both ends of a long series are
    looked at step by step too, and the three share the limit."""
    cuts: list[tuple[int, float]] = []
    long, grows = len(series) > MOST, spans_a_decade(series)
    limit = limit / 3 if long else limit
    _cut(series, (0, len(series)), limit, grows, cuts)
    if long:
        places = [place for place, _ in cuts]
        _cut(series, (0, min([MOST, *places])), limit, grows, cuts)
        _cut(series, (max([len(series) - MOST, *places]), len(series)), limit, grows, cuts)
    return cuts


def _cut(series: Series, part: tuple[int, int], limit: float, grows: bool, cuts: list[tuple[int, float]]) -> None:
    """Add the border of a part of the series to `cuts`, then those of both sides of it, as far as they are clear."""
    first, end = part
    if end - first < FEWEST_STEPS:
        return
    place, alarm = best_border(series[first:end], limit=limit, grows=grows)
    if alarm <= limit:
        cuts.append((first + place, alarm))
        _cut(series, (first, first + place), limit, grows, cuts)
        _cut(series, (first + place, end), limit, grows, cuts)


def spans_a_decade(values: Series) -> bool:
    """Return whether all values are positive and the largest is more than ten times the smallest."""
    return bool(values.min() > 0 and values.max() > DECADE * values.min())


def best_border(series: Series, *, limit: float, grows: bool) -> tuple[int, float]:
    """Return the place at which two lines fit best, and the bound on the probability of such a fit where one line is true.

    Where the whole series `grows` over a decade, that holds of its logarithms too: steady growth is a line in these alone.
    """
    block = math.ceil(len(series) / MOST)
    blocks = np.array([np.median(series[at : at + block]) for at in range(0, len(series), block)])
    place, alarm = 0, 0.0
    for scaled in scales_of(blocks, grows=grows):
        places, shares = _two_lines(scaled[None])
        place, share = int(places[0]), float(shares[0])
        bound = min(1.0, (len(scaled) - 2 * FEWEST + 1) * share ** ((len(scaled) - 4) / 2))
        alarm = max(alarm, bound if bound > limit else max(bound, _among_orders(scaled, share, limit=limit)))
    return (place if block == 1 else _refined(series, place * block, block, grows=grows)), alarm


def scales_of(values: Series, *, grows: bool) -> list[Series]:
    """Return the values, and with `grows` their logarithms; each centred, the largest being 1."""
    logarithms = [np.log(values)] if grows else []
    return [_centred(each) for each in (values, *logarithms)]


def _centred(values: Series) -> Series:
    """Return values of mean 0 and largest size 1. What is left of equal ones is rounding: those are 0."""
    centred = values - values.mean()
    largest = float(np.abs(centred).max())
    return (
        centred / largest if largest > ROUNDING * max(1e-300, float(np.abs(values).max())) else np.zeros_like(centred)
    )


def _two_lines(scores: NDArray[np.float64]) -> tuple[NDArray[np.intp], Series]:
    """Return for each row the best border, and what two lines leave of the squares that one leaves; 1 where it leaves none."""
    count = scores.shape[1]
    borders = np.arange(FEWEST, count - FEWEST + 1)
    left = _rest_of_lines(scores)[:, borders]
    right = _rest_of_lines(scores[:, ::-1])[:, count - borders]
    whole = _rest_of_lines(scores)[:, count]
    both = left + right
    best = both.argmin(axis=1)
    least = np.take_along_axis(both, best[:, None], axis=1)[:, 0]
    exact = whole <= ROUNDING * count
    return borders[best], np.where(exact, 1.0, np.clip(least / np.where(exact, 1.0, whole), 0.0, 1.0))


def _rest_of_lines(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each row and each n the sum of squares that the best line through its first n values leaves."""
    rows, count = scores.shape
    n = np.arange(1, count + 1)
    times = np.arange(count, dtype=np.float64)
    sum_y, sum_yy, sum_ty = (np.cumsum(part, axis=1) for part in (scores, scores**2, times * scores))
    mean_t = (n - 1) / 2
    spread_t = n * (n**2 - 1) / 12
    syy = sum_yy - sum_y**2 / n
    sty = sum_ty - mean_t * sum_y
    rest = np.maximum(0.0, syy - np.where(n > 1, sty**2 / np.maximum(spread_t, 1e-12), 0.0))
    return np.concatenate([np.zeros((rows, 1)), rest], axis=1)


def _among_orders(scores: Series, share: float, *, limit: float) -> float:
    """Return the share of random orders of the residuals about one line in which two lines fit as well, this one counted.

    No more orders are drawn than are needed to see that it is over the limit; and at most `MOST_ORDERS`, where none as good
    counts as the limit.
    """
    orders = min(MOST_ORDERS, max(ORDERS, math.ceil(1 / max(limit, 1 / MOST_ORDERS)) - 1))
    draw = np.random.default_rng(0)
    times = np.arange(len(scores), dtype=np.float64)
    slope, level = np.polyfit(times, scores, 1)
    residuals = scores - (slope * times + level)
    as_good = drawn = 0
    while drawn < orders and 1 + as_good <= max(1.0, limit * (orders + 1)):
        count = min(BATCH, orders - drawn)
        _, shares = _two_lines(draw.permuted(np.broadcast_to(residuals, (count, len(scores))), axis=1))
        as_good, drawn = as_good + int((shares <= share).sum()), drawn + count
    return (1 + as_good) / (drawn + 1) if as_good else min(limit, 1 / (drawn + 1))


def _refined(series: Series, near: int, block: int, *, grows: bool) -> int:
    """Return the border among the steps about one that was found between blocks, of which none lies nearer to an end than
    `FEWEST` blocks."""
    scores = scales_of(series, grows=grows)[-1]
    around = FEWEST * block
    low, high = max(FEWEST, near - around), min(len(series) - FEWEST, near + around)
    left = _rest_of_lines(scores[None])[0]
    right = _rest_of_lines(scores[None, ::-1])[0]
    return min(range(low, high + 1), key=lambda place: float(left[place] + right[len(series) - place]))


def _bend(steps: Sequence[int], series: Series, parts: tuple[int, int, int], alarm: float) -> Bend:
    first, place, end = parts
    before, after = series[first:place], series[place:end]
    rest = np.concatenate([_about_line(before), _about_line(after)])
    two_less_one = _about_line(series[first:end]) - rest
    rounding = ROUNDING * float(np.abs(series[first:end]).max())
    return Bend(
        place=place,
        step=steps[place],
        before=float(np.median(before)),
        after=float(np.median(after)),
        at=float(after[0] - rest[place - first]),
        apart=_above(rounding, float(np.abs(two_less_one).max())),
        noise=_above(rounding, noise_of(rest)),
        alarm=alarm,
    )


def _above(rounding: float, value: float) -> float:
    """Return a value, and 0 for one that is rounding alone."""
    return value if value > rounding else 0.0


def _about_line(values: Series) -> Series:
    times = np.arange(len(values), dtype=np.float64)
    slope, level = np.polyfit(times, values, 1)
    return np.asarray(values - (slope * times + level))


def noise_of(rest: Series) -> float:
    """Return the standard deviation of noise by its median absolute deviation: Hampel, "The Influence Curve and its Role in
    Robust Estimation", 1974."""
    return float(TO_SIGMA * np.median(np.abs(rest - np.median(rest))))

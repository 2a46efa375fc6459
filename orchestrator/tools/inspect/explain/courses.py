"""The course of each metric over the steps of a stage, and what kind of thing it measures."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np

from temper.orchestrator.run.metrics_log import MetricsRow, step_rows
from temper.orchestrator.tools.inspect.explain.bends import noise_of

Kind = Literal["learning", "given", "machine"]
"""What the model and its rewards do; what settings and the mixture lay down; what the processes and the clock do."""
MACHINE = ("time/", "episode/", "engine/", "push/", "buffer/", "rollout/dropped", "rollout/episodes_")
MACHINE_ENDINGS = ("_s", "step_seconds", "failure_rate", "failures_retried", "per_s")
GIVEN = ("train/learning_rate", "train/lag_", "rollout/partial")
GIVEN_ENDINGS = ("/groups",)
"""Groups that are asked for. How many are trained, and how many updates are made, follows from what was answered."""
SAME = ("/reward_trained", "/parts/correct")
"""The reward of those groups alone that were trained, which are chosen by it; and what `correct` says too."""
PARTS, SHARE = "/parts/", "/share"
"""Between an environment and a part of its rewards, and behind the part: the share of answers that have it."""
SKIPPED = "train/skipped"
RATE = "train/learning_rate"
KINK = 5.0
FEW = 5
"""Values whose median stands for the beginning, or the end, of a course."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One metric of one stage over its steps; values that were not finite are left out."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def first(self) -> float:
        """The median of its first values."""
        return median(self.values[:FEW])

    @property
    def last(self) -> float:
        """The median of its last values."""
        return median(self.values[-FEW:])

    @property
    def noise(self) -> float:
        """The standard deviation of its noise from step to step, by the median absolute deviation of its differences."""
        changes = np.diff(np.array(self.values))
        return noise_of(changes) / math.sqrt(2) if len(changes) else 0.0

    def smoothed(self) -> list[float]:
        """Return medians of three neighbours, so that no single step counts."""
        values = self.values
        return [median(values[max(0, at - 1) : at + 2]) for at in range(len(values))]


def courses_of(rows: Iterable[MetricsRow], stage: str) -> dict[str, Course]:
    """Return the courses of an instance of a stage by metric, in the order in which its rows have them.

    The share of answers that have a part is 1 where a row has the part without it.
    """
    points: dict[str, list[tuple[int, float]]] = {}
    own = step_rows(rows, stage)
    shares = dict.fromkeys(name for row in own for name in row.values if PARTS in name and name.endswith(SHARE))
    for row in own:
        of_all = [name for name in shares if name not in row.values and name.removesuffix(SHARE) in row.values]
        for name, value in (row.values | dict.fromkeys(of_all, 1.0)).items():
            if math.isfinite(value):
                points.setdefault(name, []).append((row.step, value))
    return {
        name: Course(name=name, steps=tuple(s for s, _ in each), values=tuple(v for _, v in each))
        for name, each in points.items()
    }


def has_kink(course: Course, *, near: int, within: int) -> bool:
    """Return whether the slope of a course changes within some steps of one more than `KINK` times as much as it mostly does.

    That tells the place at which a schedule was changed from a smooth curve, which two lines fit better wherever it is cut.
    """
    turns = np.abs(np.diff(np.array(course.values), n=2))
    close = [turn for turn, step in zip(turns, course.steps[1:-1], strict=True) if abs(step - near) <= within]
    return len(close) > 0 and max(close) > KINK * float(np.median(turns))


def steps_left_out(rows: Iterable[MetricsRow], stage: str) -> list[int]:
    """Return the steps of an instance of a stage of which an update was skipped, or a value was not finite."""
    return [
        row.step
        for row in step_rows(rows, stage)
        if row.values.get(SKIPPED, 0.0) > 0 or not all(map(math.isfinite, row.values.values()))
    ]


def kind_of(metric: str) -> Kind:
    """Return what kind of thing a metric measures."""
    if metric.startswith(MACHINE) or metric.endswith(MACHINE_ENDINGS):
        return "machine"
    if metric.startswith(GIVEN) or metric.endswith(GIVEN_ENDINGS):
        return "given"
    return "learning"


def is_told(metric: str) -> bool:
    """Return whether a bend of it says something that no other metric says better."""
    return not metric.endswith(SAME)

"""What signatures look at: the courses of a stage, its bends, and the settings under which it ran."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from temper.orchestrator.loop.shaping import ANSWER_LENGTH, EFFORT, OVERLONG, THOUGHT_LENGTH
from temper.orchestrator.tools.inspect.explain.bends import Bend
from temper.orchestrator.tools.inspect.explain.courses import FEW, SHARE, Course
from temper.rewards.verdict import CORRECT, WEIGHTS

FLOAT32_GAP = 1e-4
"""The largest mean |log pi - log mu| that two float32 computations of the same weights show, in nats: 1e-5 and a margin."""
LAG = "train/lag_tokens"
SHAPING = (THOUGHT_LENGTH, ANSWER_LENGTH, EFFORT, OVERLONG)
HALF_GAP = 0.05
"""The same where engine and trainer compute in 16 bits both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A stage of a run. `bends` has those of each metric; `config` is the run's configuration as plain data, `settings` what
    of it holds for this instance of the stage."""

    stage: str
    courses: Mapping[str, Course]
    bends: Mapping[str, list[Bend]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def course(self, name: str) -> Course | None:
        """Return the course of a metric; None where it was measured in too few steps to have a beginning and an end."""
        found = self.courses.get(name)
        return found if found is not None and len(found.values) >= 2 * FEW else None

    @property
    def envs(self) -> list[str]:
        """The environments whose rewards were measured."""
        parts = [name.split("/") for name in self.courses]
        return sorted(p[1] for p in parts if len(p) == 3 and p[0] == "env" and p[2] == "reward")

    def worth(self, env: str) -> Course | None:
        """Return what the parts of an environment's rewards are worth by its declared weights, with what shaping added.

        None where its verdicts have no part `correct`: then nothing but the reward says what is right.
        """
        weights = self.setting(f"envs.{env}.weights", None) or WEIGHTS
        named = {part: self.courses.get(f"env/{env}/parts/{part}") for part in (*weights, *SHAPING)}
        there = {part: course for part, course in named.items() if course is not None}
        if CORRECT not in there:
            return None
        at = {part: self._over_all(course) for part, course in there.items()}
        steps = there[CORRECT].steps
        values = tuple(sum(weights.get(part, 1.0) * each.get(step, 0.0) for part, each in at.items()) for step in steps)
        return Course(name=f"env/{env}/worth", steps=steps, values=values)

    def _over_all(self, part: Course) -> dict[int, float]:
        """Return the mean of a part by step over all scored answers, of which those without it have 0."""
        share = self.courses.get(part.name + SHARE)
        shares = dict(zip(share.steps, share.values, strict=True)) if share is not None else {}
        return {step: value * shares.get(step, 1.0) for step, value in zip(part.steps, part.values, strict=True)}

    def by_lag(self, name: str) -> list[tuple[float, float, int]]:
        """Return a metric's values, the mean versions since tokens were sampled, and the steps, where both are known."""
        course, lag = self.courses.get(name), self.courses.get(LAG)
        if course is None or lag is None:
            return []
        lags = dict(zip(lag.steps, lag.values, strict=True))
        return [(v, lags[step], step) for step, v in zip(course.steps, course.values, strict=True) if step in lags]

    @property
    def expected_gap(self) -> float:
        """The mean |log pi - log mu| of the same weights that the precisions of engine and trainer explain."""
        engine = _setting(self.config, "rollout.engine.dtype", "float32")
        trainer = "bfloat16" if _setting(self.config, "learner.bf16", False) else "float32"
        return HALF_GAP if trainer == "bfloat16" and engine in ("bfloat16", "auto") else FLOAT32_GAP

    def setting(self, name: str, default: Any) -> Any:
        """Return a setting by its whole name, as the run's configuration gives it."""
        return _setting(self.config, name, default)


def _setting(config: Mapping[str, Any], name: str, default: Any) -> Any:
    value: Any = config
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def steadiness(course: Course) -> float:
    """Return how steadily a course rises, -1 to 1: Spearman's rank correlation of its values with their order (Spearman,
    "The Proof and Measurement of Association between Two Things", 1904); 0 where all are equal."""
    values = np.array(course.values)
    ranks = np.searchsorted(np.sort(values), values, side="left") + np.searchsorted(
        np.sort(values), values, side="right"
    )
    if ranks.std() == 0:
        return 0.0
    return float(np.corrcoef(np.arange(len(values)), ranks)[0, 1])


def first_over(course: Course, limit: float) -> int | None:
    """Return the first step at which a course, smoothed, is over a limit; None where it never is."""
    return next((step for step, value in zip(course.steps, course.smoothed(), strict=True) if value > limit), None)


def fall(course: Course) -> tuple[float, float, int] | None:
    """Return from which best median of `FEW` steps a course fell to which last one, and the step at which it was half-way.

    None where it did not fall: by a quarter of its best, and by three times its noise.
    """
    steps, medians = course.steps, _medians(course)
    best = max(range(len(medians)), key=medians.__getitem__)
    lost = medians[best] - medians[-1]
    if lost <= 0.25 * abs(medians[best]) or lost <= 3 * course.noise:
        return None
    half = medians[best] - lost / 2
    after = next(at for at in range(best, len(medians)) if medians[at] <= half)
    return medians[best], medians[-1], steps[min(after + FEW // 2, len(steps) - 1)]


def _medians(course: Course) -> list[float]:
    return [median(course.values[at : at + FEW]) for at in range(len(course.values) - FEW + 1)]


def parted_since_best(course: Course, other: Course) -> float:
    """Return how much further a course is above another at the end than at the best median of `FEW` steps of that other one.

    0 where the course itself is no higher at the end than there: then both fell, as where tasks become harder.
    """
    medians = _medians(other)
    best = max(range(len(medians)), key=medians.__getitem__)
    there = set(other.steps[best : best + FEW])
    then = [value for step, value in zip(course.steps, course.values, strict=True) if step in there]
    risen = course.last - median(then) if then else 0.0
    return risen + medians[best] - other.last if risen > 0 else 0.0


def change(course: Course) -> float:
    """Return how much a course has risen from its first to its last values, in units of its noise, 0 where that is less."""
    risen, noise = course.last - course.first, course.noise
    return 0.0 if risen == 0 else risen / noise if noise else float(np.sign(risen)) * float("inf")


def parting(one: Course, other: Course) -> int | None:
    """Return the first step from which on a course, smoothed, stays further above another than half-way between their
    distances at the beginning and at the end."""
    above = [a - b for a, b in zip(one.smoothed(), other.smoothed(), strict=False)]
    level = ((one.first - other.first) + (one.last - other.last)) / 2
    last_below = max((at for at, distance in enumerate(above) if distance <= level), default=-1)
    return one.steps[last_below + 1] if last_below + 1 < len(above) else None

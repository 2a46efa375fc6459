"""What a report draws of a stage, which each stage declares."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What one figure shows: metrics of a stage over its steps, those that the run has."""

    title: str
    note: str
    metrics: dict[str, str]
    """Metric name to label."""
    smooth: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """The figures of a stage."""

    curves: tuple[Curve, ...] = ()
    rewards: str | None = None
    """What is said of the figure of its rewards by environment; None where it has none."""


NO_FIGURES = StageFigures()

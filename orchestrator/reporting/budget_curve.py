"""Accuracy against thinking budget: what is asked for, and what is measured of the answers. Pure functions of groups."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from statistics import fmean, median, stdev

from envs.core.thinking_mode import Thinking, up_to
from orchestrator.reporting.curve_point import CurvePoint
from rollout.trajectory import Closed, Group, Trajectory, well_formed_share

CLOSED = (Closed.ITSELF, Closed.LINE_END, Closed.ABRUPT, Closed.NEVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A mode of thinking that a curve has a point for; `share` where its budget is a share of the median thought."""

    thinking: Thinking
    share: float | None = None


def median_free_thought(groups: Iterable[Group], *, scope: str) -> float | None:
    """The median thought in tokens: over turns, or over episodes where the scope is "episode"; None without an answer."""
    scored = [t for group in groups for t in group.trajectories]
    if scope == "episode":
        lengths = [t.thought_tokens for t in scored]
    else:
        lengths = [turn.thought.tokens for t in scored for turn in t.turns]
    return float(median(lengths)) if lengths else None


def budget_settings(budgets: Iterable[int], shares: Iterable[float], *, free_thought: float) -> list[Setting]:
    """The budgets, and the shares of the median free thought, at least one token; each once."""
    fixed = [Setting(thinking=up_to(budget)) for budget in budgets]
    relative = [Setting(thinking=up_to(max(1, round(share * free_thought))), share=share) for share in shares]
    return list(dict.fromkeys((*fixed, *relative)))


def curve(groups: Sequence[Group], settings: Iterable[Setting], *, scope: str) -> list[CurvePoint]:
    """The points of one environment, in the order of their budgets.

    Each is measured on the groups whose task has its mode; without a single score its measures are NaN. `scope` says what
    has a budget: a turn or an episode.
    """
    points = []
    for setting in settings:
        of_mode = [group for group in groups if group.ticket.task.thinking == setting.thinking]
        points.append(_point(of_mode, setting, scope=scope))
    return sorted(points, key=lambda point: point.place)


def task_accuracies(groups: Iterable[Group], *, failed_are_wrong: bool = False) -> list[float]:
    """The share of right answers to each task, among those with a score or among all; a task without any is left out."""
    counts = [
        (sum(t.correct for t in group.trajectories), len(group.trajectories) + failed_are_wrong * len(group.failed))
        for group in groups
    ]
    return [right / among for right, among in counts if among]


def standard_error(values: Sequence[float]) -> float:
    """The standard error of a mean; 0 for one value, NaN for none."""
    if not values:
        return nan
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def overshoots(trajectory: Trajectory, budget: int, *, scope: str) -> list[int]:
    """Each turn's thought beyond its budget, in tokens; over an episode a turn has what the earlier ones left of it."""
    beyond, left = [], budget
    for turn in trajectory.turns:
        beyond.append(max(0, turn.thought.tokens - left))
        if scope == "episode":
            left = max(0, left - turn.thought.tokens)
    return beyond


def _point(groups: Sequence[Group], setting: Setting, *, scope: str) -> CurvePoint:
    scored = [t for group in groups for t in group.trajectories]
    thoughts = [turn.thought for t in scored for turn in t.turns]
    accuracies = task_accuracies(groups)
    budget = setting.thinking.budget
    beyond = [0] if budget is None else [n for t in scored for n in overshoots(t, budget, scope=scope)]
    return CurvePoint(
        mode=setting.thinking.mode,
        budget=budget,
        share=setting.share,
        tasks=len(groups),
        samples=len(scored),
        failures=sum(len(group.failed) for group in groups),
        accuracy=mean(accuracies),
        accuracy_low=mean(task_accuracies(groups, failed_are_wrong=True)) if scored else nan,
        stderr=standard_error(accuracies),
        well_formed=well_formed_share(scored) if scored else nan,
        closed={how.value: mean([thought.closed is how for thought in thoughts]) for how in CLOSED},
        thought_tokens=mean([t.thought_tokens for t in scored]),
        thought_tokens_turn=mean([thought.tokens for thought in thoughts]),
        thought_tokens_median=float(median(thought.tokens for thought in thoughts)) if thoughts else nan,
        answer_tokens=mean([t.answer_tokens for t in scored]),
        answer_tokens_turn=mean([thought.answer_tokens for thought in thoughts]),
        overshoot=mean(beyond),
        overshoot_max=max(beyond, default=0),
        truncated=mean([t.truncated for t in scored]),
    )


def mean(values: Sequence[float]) -> float:
    """The mean; NaN without values, as where no answer has a score."""
    return fmean(values) if values else nan

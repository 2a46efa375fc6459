"""The curve of accuracy over thinking budget: its conditions, its measures and its file format."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import nan
from statistics import fmean, median
from typing import Any

from temper.envs.core.thinking_mode import Mode, Thinking, up_to
from temper.envs.source import content_key
from temper.orchestrator.evaluation.intervals import accuracy_interval, standard_error
from temper.orchestrator.evaluation.paired import TaskScore, compare_tasks
from temper.rollout.budget.config import Scope
from temper.rollout.trajectory import Closed, Group, Trajectory, well_formed_share

CLOSED = (Closed.ITSELF, Closed.LINE_END, Closed.ABRUPT, Closed.NEVER)
ORDER = (Mode.OFF, Mode.LOW_EFFORT, Mode.BUDGET, Mode.UNLIMITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A thinking mode with a point on the curve. `share` is the budget as a share of the median reasoning length.

    `nested`: the answers share the beginning of unlimited ones.
    """

    thinking: Thinking
    share: float | None = None
    nested: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPoint:
    """The answers of one environment in one thinking mode. Lengths are in tokens, shares between 0 and 1.

    Measures are over scored answers, NaN without any.
    """

    mode: Mode
    budget: int | None = None
    """Budget in tokens, None in modes without one."""
    share: float | None = None
    """The budget as a share of the median unlimited reasoning, if requested so."""
    nested: bool | None = None
    """Whether the answers were nested in unlimited ones, not sampled in a pass. None in files of version 0.2.0."""
    tasks: int
    samples: int
    """Scored answers over all tasks."""
    failures: int = 0
    """Failed answers, for reasons outside the model."""
    accuracy: float
    """Mean over tasks of the share of right answers."""
    accuracy_low: float
    """The same with failed answers as wrong."""
    stderr: float
    """Standard error of the accuracy over tasks."""
    well_formed: float
    """Share of turns that close their reasoning exactly once and have no tag in the answer."""
    closed: dict[str, float]
    """Shares of turns by the end of reasoning: itself, line_end, abrupt, never."""
    thinking_tokens: float
    """Mean reasoning of an episode."""
    thinking_tokens_turn: float
    """Mean reasoning of a turn."""
    thinking_tokens_median: float
    """Median reasoning of a turn."""
    answer_tokens: float
    """Mean answer of an episode."""
    answer_tokens_turn: float
    """Mean answer of a turn."""
    overshoot: float
    """Mean over turns of the reasoning beyond the budget."""
    overshoot_max: int
    """Largest reasoning beyond the budget."""
    truncated: float
    """Share of truncated episodes."""
    scores: tuple[TaskScore, ...] = ()
    """The result of each task, for comparisons."""

    @classmethod
    def read(cls, raw: dict[str, Any]) -> "BudgetPoint":
        """Read a point from `as_json`. Raise `KeyError`, `TypeError` or `ValueError` for anything else."""
        known: dict[str, Any] = {name: value for name, value in raw.items() if name in cls.__dataclass_fields__}
        plain = ("budget", "share", "nested", "scores")
        given = {name: nan_for_null(value) for name, value in known.items() if name not in plain}
        scores = tuple(TaskScore(**score) for score in raw.get("scores", ()))
        return cls(**{**known, **given, "mode": Mode(raw["mode"]), "scores": scores})

    def as_json(self) -> dict[str, Any]:
        """Return the point and its interval as plain data."""
        return asdict(self) | {"mode": self.mode.value, "interval": list(self.interval)}

    @property
    def label(self) -> str:
        """The mode, or `budget-64`, for tables and metrics."""
        return Thinking(mode=self.mode, budget=self.budget).label

    @property
    def tokens(self) -> float:
        """Mean tokens of an episode, reasoning and answer."""
        return self.thinking_tokens + self.answer_tokens

    @property
    def tokens_per_right_answer(self) -> float:
        """Mean tokens spent for each right answer, NaN without one."""
        return self.tokens / self.accuracy if self.accuracy > 0 else nan

    @property
    def place(self) -> tuple[int, int, float]:
        """Its order in a curve: off, low effort, budgets from small to large, unlimited."""
        return ORDER.index(self.mode), self.budget or 0, self.share or 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the accuracy, NaN without a score."""
        return accuracy_interval(self.accuracy, stderr=self.stderr, tasks=self.tasks, samples=self.samples)


def median_free_thinking(groups: Iterable[Group], *, scope: Scope) -> float | None:
    """Return the median reasoning in tokens, over turns or, with scope "episode", over episodes; None without an answer."""
    scored = [t for group in groups for t in group.trajectories]
    if scope == "episode":
        lengths = [t.thinking_tokens for t in scored]
    else:
        lengths = [turn.thinking.tokens for t in scored for turn in t.turns]
    return float(median(lengths)) if lengths else None


def with_thinking(group: Group, thinking: Thinking) -> Group:
    """Return the group as answers in another mode of thinking."""
    return replace(group, ticket=replace(group.ticket, task=replace(group.ticket.task, thinking=thinking)))


def at_budget(group: Group, budget: int) -> Group:
    """Return the answers at a nested budget of a group without failures. Answers that it would not change are the same."""
    at = with_thinking(group, up_to(budget)).ticket
    answers = (t.forced_answer(budget) or replace(t, task=at.task, forced_answers=()) for t in group.trajectories)
    return Group.of(at, list(answers))


def budget_conditions(budgets: Iterable[int], shares: Iterable[float], *, free_thinking: float) -> list[Condition]:
    """Return a condition for each budget, and for each share of the median free reasoning (at least 1 token), without
    duplicates.
    """
    fixed = [Condition(thinking=up_to(budget)) for budget in budgets]
    relative = [Condition(thinking=up_to(max(1, round(share * free_thinking))), share=share) for share in shares]
    return list(dict.fromkeys((*fixed, *relative)))


def budget_for_accuracy(curves: Mapping[str, Sequence[BudgetPoint]], share: float) -> int | None:
    """Return the least budget from which on every environment has `share` of its unlimited accuracy, None without one.

    An environment has it at a budget if the 95 % interval of the difference, paired by task, excludes a larger loss.
    """
    by_env = [
        {p.budget: _has_accuracy(free, p, share) for p in points if p.budget is not None}
        for points in curves.values()
        for free in points
        if free.mode is Mode.UNLIMITED
    ]
    common = set.intersection(*map(set, by_env)) if by_env else set()
    lacking = max((budget for kept in by_env for budget, keeps in kept.items() if not keeps), default=-1)
    return min((budget for budget in common if budget > lacking), default=None)


def _has_accuracy(free: BudgetPoint, limited: BudgetPoint, share: float) -> bool:
    """Return whether the lower bound of an accuracy under a budget is at least `share` of the unlimited one, above 0."""
    found = compare_tasks(free.scores, limited.scores)
    return found.first > 0 and found.first + found.interval[0] >= share * found.first


def budget_curve(groups: Sequence[Group], conditions: Iterable[Condition], *, scope: Scope) -> list[BudgetPoint]:
    """Return the points of one environment in the order of their budgets.

    Each covers the groups whose task has its mode. `scope` is the unit of a budget: a turn or an episode.
    """
    points = []
    for condition in conditions:
        of_mode = [group for group in groups if group.ticket.task.thinking == condition.thinking]
        points.append(_point(of_mode, condition, scope=scope))
    return sorted(points, key=lambda point: point.place)


def task_accuracies(groups: Iterable[Group], *, failed_are_wrong: bool = False) -> list[float]:
    """Return the share of right answers to each task, among scored or all answers. Skip tasks without any."""
    counts = [
        (sum(t.correct for t in group.trajectories), len(group.trajectories) + failed_are_wrong * len(group.failed))
        for group in groups
    ]
    return [right / among for right, among in counts if among]


def task_scores(groups: Iterable[Group]) -> list[TaskScore]:
    """Return the result of each task, for comparisons."""
    return [
        TaskScore(
            key=group.ticket.task.key,
            content=content_key(group.ticket.task),
            right=sum(one.correct for one in group.trajectories),
            scored=len(group.trajectories),
            failed=len(group.failed),
        )
        for group in groups
    ]


def overshoots(trajectory: Trajectory, budget: int, *, scope: Scope) -> list[int]:
    """Return the reasoning of each turn beyond its budget, in tokens. Over an episode a turn has the budget that earlier ones
    left.
    """
    beyond, left = [], budget
    for turn in trajectory.turns:
        beyond.append(max(0, turn.thinking.tokens - left))
        if scope == "episode":
            left = max(0, left - turn.thinking.tokens)
    return beyond


def _point(groups: Sequence[Group], condition: Condition, *, scope: Scope) -> BudgetPoint:
    scored = [t for group in groups for t in group.trajectories]
    thoughts = [turn.thinking for t in scored for turn in t.turns]
    accuracies = task_accuracies(groups)
    budget = condition.thinking.budget
    beyond = [0] if budget is None else [n for t in scored for n in overshoots(t, budget, scope=scope)]
    return BudgetPoint(
        mode=condition.thinking.mode,
        budget=budget,
        share=condition.share,
        nested=condition.nested,
        tasks=len(groups),
        samples=len(scored),
        failures=sum(len(group.failed) for group in groups),
        accuracy=mean(accuracies),
        accuracy_low=mean(task_accuracies(groups, failed_are_wrong=True)) if scored else nan,
        stderr=standard_error(accuracies),
        well_formed=well_formed_share(scored) if scored else nan,
        closed={how.value: mean([one.closed is how for one in thoughts]) for how in CLOSED},
        thinking_tokens=mean([t.thinking_tokens for t in scored]),
        thinking_tokens_turn=mean([one.tokens for one in thoughts]),
        thinking_tokens_median=float(median(one.tokens for one in thoughts)) if thoughts else nan,
        answer_tokens=mean([t.answer_tokens for t in scored]),
        answer_tokens_turn=mean([one.answer_tokens for one in thoughts]),
        overshoot=mean(beyond),
        overshoot_max=max(beyond, default=0),
        truncated=mean([t.truncated for t in scored]),
        scores=tuple(task_scores(groups)),
    )


def mean(values: Sequence[float]) -> float:
    """Return the mean, NaN without values."""
    return fmean(values) if values else nan


def nan_for_null(value: Any) -> Any:
    """Return values from a file with NaN for null."""
    if isinstance(value, dict):
        return {name: nan_for_null(inner) for name, inner in value.items()}
    return nan if value is None else value

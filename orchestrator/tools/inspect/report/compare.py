"""Groups of runs compared: each group is one setting, its runs differ in the seed. From the files of the runs alone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite, nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from temper.envs.core.thinking_mode import Mode, Thinking
from temper.orchestrator.evaluation.budget_curve import ORDER, BudgetPoint
from temper.orchestrator.evaluation.paired import TaskComparison, TaskScore, compare_tasks
from temper.orchestrator.evaluation.record import read_run

MEASURES: dict[str, Callable[[BudgetPoint], float]] = {
    "accuracy": lambda point: point.accuracy,
    "tokens": lambda point: point.tokens,
    "well_formed": lambda point: point.well_formed,
    "thought_tokens_turn": lambda point: point.thought_tokens_turn,
    "answer_tokens_turn": lambda point: point.answer_tokens_turn,
    "failed": lambda point: point.failures / max(1, point.failures + point.samples),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A number over the runs of a group; NaN where no run has it. `std` is of the sample, NaN for a single run."""

    mean: float
    low: float
    high: float
    std: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudgetCurve:
    """One run's curves by environment, from the evaluation after the stage `label`."""

    run: str
    seed: int | None
    label: str
    curve: dict[str, list[BudgetPoint]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs of one setting."""

    name: str
    runs: list[RunBudgetCurve]

    def curves(self, env: str) -> list[list[BudgetPoint]]:
        """Return the curves of one environment, of the runs that have it."""
        return [run.curve[env] for run in self.runs if env in run.curve]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointKey:
    """Identity of a point across runs: the mode, and the budget in tokens.

    A share of the median thought is another budget for each model.
    """

    mode: Mode
    budget: int | None = None

    @classmethod
    def of(cls, point: BudgetPoint) -> "PointKey":
        return cls(mode=point.mode, budget=point.budget)

    @property
    def label(self) -> str:
        """For tables: `off`, `budget-64`."""
        return Thinking(mode=self.mode, budget=self.budget).label

    @property
    def place(self) -> tuple[int, int]:
        """Its place in a table: off, low effort, budgets, unlimited."""
        return ORDER.index(self.mode), self.budget or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a curve is to show, over the runs of one group."""

    lowest_well_formed: Spread
    """Lowest well-formed share over the budgets."""
    answer_growth: Spread
    """Answer of a turn at the smallest budget, over the answer without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvComparison:
    """One environment: by point and group the spread of each measure, and the claims by group.

    `differences` has by point each further group against the first: the accuracies paired by task, over the answers of all
    runs of a group to a task.
    """

    points: dict[PointKey, dict[str, dict[str, Spread]]]
    differences: dict[PointKey, dict[str, TaskComparison]]
    claims: dict[str, Claims]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupComparison:
    """All groups, environment by environment."""

    groups: list[RunGroup]
    envs: dict[str, EnvComparison]

    def as_json(self) -> dict[str, Any]:
        """Return what `compare.json` holds; a number that is not known is NaN."""
        return {
            "groups": {
                group.name: [{"run": run.run, "seed": run.seed, "label": run.label} for run in group.runs]
                for group in self.groups
            },
            "envs": {env: _env_json(found) for env, found in self.envs.items()},
        }


def read_group(name: str, run_dirs: Iterable[Path], *, label: str | None) -> RunGroup:
    """Read the curves of a group's runs: of their last evaluation that has one, or of the one that `label` names.

    Raise `FileNotFoundError` for a folder that is no run, `ValueError` where there is no such curve and where the runs
    end with different evaluations.
    """
    runs = [read_curve(run_dir, label=label) for run_dir in run_dirs]
    if len({run.label for run in runs}) > 1:
        listed = ", ".join(f"{run.run}: {run.label}" for run in runs)
        raise ValueError(f"the runs of {name!r} have their last curves after different stages ({listed}); give --label")
    return RunGroup(name=name, runs=runs)


def read_curve(run_dir: Path, *, label: str | None) -> RunBudgetCurve:
    """Read one run's curve; see `read_group`."""
    if not run_dir.is_dir():
        raise FileNotFoundError(f"no such run: {run_dir} is no folder")
    record = read_run(run_dir)
    curves = record.budget_curves
    if not curves:
        raise ValueError(
            f"{run_dir} has no curve; evaluate it with eval.budgets, for example "
            f"`temper eval {run_dir / 'config.yaml'} 'eval.budgets=[16,32,64]'`"
        )
    if label is not None and label not in curves:
        raise ValueError(f"{run_dir} has no curve after {label!r}; it has one after {', '.join(curves)}")
    chosen = label if label is not None else list(curves)[-1]
    return RunBudgetCurve(run=str(run_dir), seed=record.seed, label=chosen, curve=curves[chosen])


def compare(groups: list[RunGroup]) -> GroupComparison:
    """Compare the groups point by point.

    Raise `ValueError` if runs were asked under different budgets, or if no limited point is in all groups.
    """
    _require_same_budgets(groups)
    keys = [{(env, PointKey.of(point)) for env in _envs([group]) for point in _points(group, env)} for group in groups]
    shared = set.intersection(*keys)
    if all(key.mode is Mode.UNLIMITED for _, key in shared):
        has = "; ".join(f"{group.name}: {_listed(found)}" for group, found in zip(groups, keys, strict=True))
        raise ValueError(
            f"the groups have nothing in common but thought without a limit ({has}); evaluate them with the same "
            f"environments and the same eval.budgets"
        )
    return GroupComparison(groups=groups, envs={env: _compare_env(groups, env) for env in _envs(groups)})


def _require_same_budgets(groups: list[RunGroup]) -> None:
    """Raise `ValueError` if two runs were asked under different budgets in an environment that both have."""
    runs = [run for group in groups for run in group.runs]
    for env in _envs(groups):
        asked = {run.run: _budgets(run.curve[env]) for run in runs if env in run.curve}
        union = sorted(set().union(*asked.values()))
        if any(budgets != union for budgets in asked.values()):
            listed = "; ".join(f"{run}: {', '.join(map(str, budgets)) or 'none'}" for run, budgets in asked.items())
            wanted = ",".join(map(str, union))
            raise ValueError(
                f"the runs have different budgets in {env}, in tokens ({listed}); evaluate each run under the same ones, for "
                f"example `temper eval RUN/config.yaml 'eval.budgets=[{wanted}]' 'eval.budget_shares=[]'`"
            )


def _budgets(points: Iterable[BudgetPoint]) -> list[int]:
    return sorted({point.budget for point in points if point.budget is not None})


def spread(measures: Iterable[float]) -> Spread:
    """Return the mean, lowest, highest and standard deviation of what was measured; NaN was not."""
    values = [value for value in measures if isfinite(value)]
    if not values:
        return Spread(mean=nan, low=nan, high=nan, std=nan, runs=0)
    std = stdev(values) if len(values) > 1 else nan
    return Spread(mean=fmean(values), low=min(values), high=max(values), std=std, runs=len(values))


def claims(curves: Iterable[Sequence[BudgetPoint]]) -> Claims:
    """Return the claims over the curves of several runs; a run without the points that a claim needs is left out of it."""
    listed = [[point for point in points if point.samples] for points in curves]
    return Claims(
        lowest_well_formed=spread([value for points in listed for value in lowest_well_formed(points)]),
        answer_growth=spread([value for points in listed for value in answer_growth(points)]),
    )


def lowest_well_formed(points: Sequence[BudgetPoint]) -> list[float]:
    """Return the lowest well-formed share over the budgets, or nothing without a budget."""
    shares = [point.well_formed for point in points if point.budget is not None]
    return [min(shares)] if shares else []


def answer_growth(points: Sequence[BudgetPoint]) -> list[float]:
    """Return the answer of a turn at the smallest budget over that without a limit; empty where it can't be said."""
    limited = [(point.budget, point.answer_tokens_turn) for point in points if point.budget is not None]
    free = [point.answer_tokens_turn for point in points if point.mode is Mode.UNLIMITED]
    return [min(limited)[1] / free[0]] if limited and free and free[0] > 0 else []


def _compare_env(groups: list[RunGroup], env: str) -> EnvComparison:
    keys = sorted({PointKey.of(point) for group in groups for point in _points(group, env)}, key=lambda key: key.place)
    first, *others = groups
    scores = {key: {group.name: _task_scores(_at(group, env, key)) for group in groups} for key in keys}
    return EnvComparison(
        points={key: {group.name: _measured(_at(group, env, key)) for group in groups} for key in keys},
        differences={
            key: {group.name: compare_tasks(found[first.name], found[group.name]) for group in others}
            for key, found in scores.items()
        },
        claims={group.name: claims(group.curves(env)) for group in groups},
    )


def _measured(points: list[BudgetPoint]) -> dict[str, Spread]:
    return {name: spread([value(point) for point in points]) for name, value in MEASURES.items()}


def _task_scores(points: Iterable[BudgetPoint]) -> list[TaskScore]:
    """Return the answers of several runs to each task together. Seeds may have different tasks."""
    found: dict[tuple[str, str], TaskScore] = {}
    for score in (score for point in points for score in point.scores):
        same = found.get((score.key, score.content))
        found[score.key, score.content] = (
            score
            if same is None
            else replace(
                same,
                right=same.right + score.right,
                scored=same.scored + score.scored,
                failed=same.failed + score.failed,
            )
        )
    return list(found.values())


def _points(group: RunGroup, env: str) -> list[BudgetPoint]:
    return [point for points in group.curves(env) for point in points]


def _at(group: RunGroup, env: str, key: PointKey) -> list[BudgetPoint]:
    """Return one point of each run that has it: a budget that was asked for twice has the same answers."""
    by_run = [[point for point in points if PointKey.of(point) == key] for points in group.curves(env)]
    return [points[0] for points in by_run if points]


def _envs(groups: list[RunGroup]) -> list[str]:
    return sorted({env for group in groups for run in group.runs for env in run.curve})


def _listed(found: set[tuple[str, PointKey]]) -> str:
    ordered = sorted(found, key=lambda pair: (pair[0], pair[1].place))
    return ", ".join(f"{env} {key.label}" for env, key in ordered if key.mode is not Mode.UNLIMITED)


def _env_json(found: EnvComparison) -> dict[str, Any]:
    points = [
        {
            "point": key.label,
            "mode": key.mode.value,
            "budget": key.budget,
            "groups": {
                name: {measure: asdict(value) for measure, value in measures.items()}
                for name, measures in by_group.items()
            },
            "against_first": {name: value.as_json() for name, value in found.differences[key].items()},
        }
        for key, by_group in found.points.items()
    ]
    return {"points": points, "claims": {name: asdict(value) for name, value in found.claims.items()}}

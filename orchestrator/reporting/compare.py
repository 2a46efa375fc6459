"""Groups of runs compared: each group is one setting, its runs differ in the seed. From the files of the runs alone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import isclose, isfinite, nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from envs.core.thinking_mode import Mode, Thinking
from orchestrator.reporting.budget_curve import ORDER, BudgetPoint
from orchestrator.reporting.record import read_run

HALF = 0.5
"""The share of the median free thought at which accuracy is set against that without a limit."""
FORMED_FROM = 0.25
"""Well-formedness is judged at budgets from this share of the median free thought."""
MEASURES: dict[str, Callable[[BudgetPoint], float]] = {
    "accuracy": lambda point: point.accuracy,
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
    """By what points of different runs are the same: the mode, and the share of the median or else the budget."""

    mode: Mode
    share: float | None = None
    budget: int | None = None

    @classmethod
    def of(cls, point: BudgetPoint) -> "PointKey":
        return cls(mode=point.mode, share=point.share, budget=point.budget if point.share is None else None)

    @property
    def label(self) -> str:
        """For tables: `off`, `0.5 of the median`, `budget-64`."""
        if self.share is not None:
            return f"{self.share:g} of the median"
        return Thinking(mode=self.mode, budget=self.budget).label

    @property
    def place(self) -> tuple[int, bool, float]:
        """Where it stands in a table: off, low effort, budgets, shares, unlimited."""
        return ORDER.index(self.mode), self.share is not None, self.share or self.budget or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a curve is to show, over the runs of one group."""

    half_thought: Spread
    """Return the accuracy at half of the median free thought, over the accuracy without a limit."""
    lowest_well_formed: Spread
    """Lowest well-formed share over the budgets from a quarter of the median free thought."""
    answer_growth: Spread
    """Answer of a turn at the smallest budget, over the answer without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvComparison:
    """One environment: by point and group the spread of each measure, and the claims by group."""

    points: dict[PointKey, dict[str, dict[str, Spread]]]
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
            f"{run_dir} has no curve; evaluate it with eval.budgets or eval.budget_shares, for example "
            f"`temper eval {run_dir / 'config.yaml'} 'eval.budget_shares=[0.25,0.5,1]'`"
        )
    if label is not None and label not in curves:
        raise ValueError(f"{run_dir} has no curve after {label!r}; it has one after {', '.join(curves)}")
    chosen = label if label is not None else list(curves)[-1]
    return RunBudgetCurve(run=str(run_dir), seed=record.seed, label=chosen, curve=curves[chosen])


def compare(groups: list[RunGroup]) -> GroupComparison:
    """Compare the groups point by point. Raise `ValueError` where no limited point is in all of them."""
    keys = [{(env, PointKey.of(point)) for env in _envs([group]) for point in _points(group, env)} for group in groups]
    shared = set.intersection(*keys)
    if all(key.mode is Mode.UNLIMITED for _, key in shared):
        has = "; ".join(f"{group.name}: {_listed(found)}" for group, found in zip(groups, keys, strict=True))
        raise ValueError(
            f"the groups have nothing in common but thought without a limit ({has}); evaluate them with the same "
            f"environments and the same eval.budget_shares or eval.budgets"
        )
    return GroupComparison(groups=groups, envs={env: _compare_env(groups, env) for env in _envs(groups)})


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
        half_thought=spread([value for points in listed for value in half_thought(points)]),
        lowest_well_formed=spread([value for points in listed for value in lowest_well_formed(points)]),
        answer_growth=spread([value for points in listed for value in answer_growth(points)]),
    )


def half_thought(points: Sequence[BudgetPoint]) -> list[float]:
    """Return the accuracy at half of the median free thought over that without a limit; empty where it can't be said."""
    half = [point.accuracy for point in points if point.share is not None and isclose(point.share, HALF)]
    free = [point.accuracy for point in points if point.mode is Mode.UNLIMITED]
    return [half[0] / free[0]] if half and free and free[0] > 0 else []


def lowest_well_formed(points: Sequence[BudgetPoint]) -> list[float]:
    """Return the lowest well-formed share from a quarter of the median free thought; empty where there is no such budget."""
    shares = [point.well_formed for point in points if point.share is not None and point.share >= FORMED_FROM]
    return [min(shares)] if shares else []


def answer_growth(points: Sequence[BudgetPoint]) -> list[float]:
    """Return the answer of a turn at the smallest budget over that without a limit; empty where it can't be said."""
    limited = [(point.budget, point.answer_tokens_turn) for point in points if point.budget is not None]
    free = [point.answer_tokens_turn for point in points if point.mode is Mode.UNLIMITED]
    return [min(limited)[1] / free[0]] if limited and free and free[0] > 0 else []


def _compare_env(groups: list[RunGroup], env: str) -> EnvComparison:
    keys = sorted({PointKey.of(point) for group in groups for point in _points(group, env)}, key=lambda key: key.place)
    return EnvComparison(
        points={key: {group.name: _measured(group, env, key) for group in groups} for key in keys},
        claims={group.name: claims(group.curves(env)) for group in groups},
    )


def _measured(group: RunGroup, env: str, key: PointKey) -> dict[str, Spread]:
    points = [point for point in _points(group, env) if PointKey.of(point) == key]
    return {name: spread([value(point) for point in points]) for name, value in MEASURES.items()}


def _points(group: RunGroup, env: str) -> list[BudgetPoint]:
    return [point for points in group.curves(env) for point in points]


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
            "share": key.share,
            "budget": key.budget,
            "groups": {
                name: {measure: asdict(value) for measure, value in measures.items()}
                for name, measures in by_group.items()
            },
        }
        for key, by_group in found.points.items()
    ]
    return {"points": points, "claims": {name: asdict(value) for name, value in found.claims.items()}}

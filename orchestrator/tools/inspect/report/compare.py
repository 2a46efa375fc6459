"""Groups of runs at the same thinking budgets. A group is one setting, and its runs differ in the seed."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite, nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from temper.envs.core.thinking_mode import Mode
from temper.orchestrator.evaluation.budget_curve import ORDER, BudgetPoint
from temper.orchestrator.evaluation.paired import TaskComparison, TaskScore, compare_tasks
from temper.orchestrator.evaluation.record import read_run
from temper.orchestrator.run.folder import write_json
from temper.orchestrator.tools.inspect.report.figures import LEGEND, CaptionedFigure, Dot, Panel, caption_panels
from temper.orchestrator.tools.inspect.report.report import render

MEASURES: dict[str, Callable[[BudgetPoint], float]] = {
    "accuracy": lambda point: point.accuracy,
    "tokens": lambda point: point.tokens,
    "well_formed": lambda point: point.well_formed,
    "thinking_tokens_turn": lambda point: point.thinking_tokens_turn,
    "answer_tokens_turn": lambda point: point.answer_tokens_turn,
    "failed": lambda point: point.failures / max(1, point.failures + point.samples),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A number over the runs of a group. NaN if no run has it. `std` is of the sample, NaN for a single run."""

    mean: float
    low: float
    high: float
    std: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurves:
    """The curves of one run by environment, from the evaluation after stage `label`."""

    run: str
    seed: int | None
    label: str
    curves: dict[str, list[BudgetPoint]]


Groups = Mapping[str, Sequence[RunCurves]]
Key = tuple[str, Mode, int | None]
"""An environment, a mode of thinking, and its budget in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPoint:
    """A point of an environment's curves: the spread of each measure by group.

    `against_first` compares each further group with the first, paired by task over the answers of all runs.
    """

    env: str
    point: str
    mode: Mode
    groups: dict[str, dict[str, Spread]]
    against_first: dict[str, TaskComparison]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"mode": self.mode.value}


def read_curves(run_dir: Path, *, label: str | None) -> RunCurves:
    """Read a run's curves from its last evaluation that has some, or from `label`.

    Raise `FileNotFoundError` if there is no run, `ValueError` if there is no such curve.
    """
    if not run_dir.is_dir():
        raise FileNotFoundError(f"no run: {run_dir} is not a folder")
    record = read_run(run_dir)
    curves = record.budget_curves
    if not curves:
        raise ValueError(
            f"{run_dir} has no curve; evaluate it with eval.budgets, for example "
            f"`temper eval {shlex.quote(str(run_dir / 'config.yaml'))} 'eval.budgets=[16,32,64]'`"
        )
    if label is not None and label not in curves:
        raise ValueError(f"{run_dir} has no curve after {label!r}; it has one after {', '.join(curves)}")
    chosen = label if label is not None else list(curves)[-1]
    return RunCurves(run=str(run_dir), seed=record.seed, label=chosen, curves=curves[chosen])


def compare(groups: Groups) -> list[ComparedPoint]:
    """Compare the groups point by point. Raise `ValueError` if their runs do not have the same evaluation and budgets."""
    for name, runs in groups.items():
        if len({run.label for run in runs}) > 1:
            listed = ", ".join(f"{run.run}: {run.label}" for run in runs)
            raise ValueError(f"the last curves of {name!r} are after different stages ({listed}); use --label")
    _require_same_budgets([run for runs in groups.values() for run in runs])
    keys = {name: {key for run in runs for key in _points(run)} for name, runs in groups.items()}
    if all(mode is Mode.UNLIMITED for _, mode, _ in set.intersection(*keys.values())):
        raise ValueError(
            f"the groups {', '.join(groups)} have no common budget; evaluate them with the same environments and "
            "the same eval.budgets"
        )
    ordered = sorted(set.union(*keys.values()), key=lambda key: (key[0], ORDER.index(key[1]), key[2] or 0))
    return [_compared(groups, key) for key in ordered]


def _require_same_budgets(runs: Sequence[RunCurves]) -> None:
    """Raise `ValueError` if two runs have different budgets in a common environment, or answered at one in different ways."""
    for env in sorted({env for run in runs for env in run.curves}):
        asked = {
            run.run: {(p.budget, p.nested) for p in run.curves[env] if p.budget is not None}
            for run in runs
            if env in run.curves
        }
        union = set().union(*asked.values())
        sets = {frozenset(budget for budget, _ in points) for points in asked.values()}
        known = {
            (budget, nested) for budget, nested in union if nested is not None
        }  # files of version 0.2.0 do not say it
        if len(sets) > 1 or len(known) > len({budget for budget, _ in known}):
            listed = "; ".join(f"{run}: {_list_budgets(budgets)}" for run, budgets in asked.items())
            wanted = ",".join(map(str, sorted({budget for budget, _ in union})))
            raise ValueError(
                f"the runs have different token budgets in {env}, or answered at them in different ways ({listed}); evaluate "
                f"each run with the same budgets and settings, for example "
                f"`temper eval RUN/config.yaml 'eval.budgets=[{wanted}]' 'eval.budget_shares=[]'`"
            )


def _list_budgets(budgets: Iterable[tuple[int, bool | None]]) -> str:
    ways = {True: "nested", False: "in a pass", None: "by version 0.2.0"}
    return ", ".join(f"{budget} {ways[nested]}" for budget, nested in sorted(budgets, key=lambda one: one[0]))


def _points(run: RunCurves) -> dict[Key, BudgetPoint]:
    """Return a run's points. Repeated budgets share their answers."""
    found: dict[Key, BudgetPoint] = {}
    for env, points in run.curves.items():
        for point in points:
            found.setdefault((env, point.mode, point.budget), point)
    return found


def _compared(groups: Groups, key: Key) -> ComparedPoint:
    by_group = {name: [p for run in runs if (p := _points(run).get(key)) is not None] for name, runs in groups.items()}
    first, *others = by_group.values()
    label = next(point.label for points in by_group.values() for point in points)
    before = _task_scores(first)
    return ComparedPoint(
        env=key[0],
        point=label,
        mode=key[1],
        groups={
            name: {measure: spread(map(value, points)) for measure, value in MEASURES.items()}
            for name, points in by_group.items()
        },
        against_first={
            name: compare_tasks(before, _task_scores(points))
            for name, points in zip(list(groups)[1:], others, strict=True)
        },
    )


def spread(measures: Iterable[float]) -> Spread:
    """Return the mean, lowest, highest and standard deviation of the measures that are not NaN."""
    values = [value for value in measures if isfinite(value)]
    if not values:
        return Spread(mean=nan, low=nan, high=nan, std=nan, runs=0)
    std = stdev(values) if len(values) > 1 else nan
    return Spread(mean=fmean(values), low=min(values), high=max(values), std=std, runs=len(values))


def _task_scores(points: Iterable[BudgetPoint]) -> list[TaskScore]:
    """Return the merged answers of several runs by task. Seeds may have different tasks."""
    found: dict[tuple[str, str], TaskScore] = {}
    for score in (score for point in points for score in point.scores):
        same = found.get((score.key, score.content))
        if same is not None:
            right, scored, failed = same.right + score.right, same.scored + score.scored, same.failed + score.failed
            score = replace(same, right=right, scored=scored, failed=failed)
        found[score.key, score.content] = score
    return list(found.values())


def write_comparison(groups: Groups, out: Path) -> Path:
    """Compare, and write the page and a JSON file of the same name. Return the path of the JSON file. Raise as `compare`."""
    points = compare(groups)
    out.parent.mkdir(parents=True, exist_ok=True)
    runs = {name: [{"run": r.run, "seed": r.seed, "label": r.label} for r in listed] for name, listed in groups.items()}
    beside = out.with_suffix(".json")
    write_json(beside, {"groups": runs, "points": [point.as_json() for point in points]})
    values = {"groups": groups, "points": points, "figures": _figures(list(groups), points)}
    out.write_text(render("compare.html.jinja", values), encoding="utf-8")
    return beside


def _figures(groups: list[str], points: Sequence[ComparedPoint]) -> list[CaptionedFigure]:
    """Draw the accuracies of the groups, and their differences to the first group."""
    envs = list(dict.fromkeys(point.env for point in points))
    first, *others = groups

    def accuracy(name: str, env: str) -> list[Dot]:
        shown = [(one.mode, one.groups[name]) for one in points if one.env == env and one.groups[name]["accuracy"].runs]
        spreads = [(mode, by["tokens"].mean, by["accuracy"]) for mode, by in shown]
        return [Dot(mode=mode, x=x, value=one.mean, low=one.low, high=one.high) for mode, x, one in spreads]

    def difference(name: str, env: str) -> list[Dot]:
        shown = [one for one in points if one.env == env and one.against_first[name].tasks]
        found = [(one.mode, one.groups[first]["tokens"].mean, one.against_first[name]) for one in shown]
        return [
            Dot(mode=mode, x=x, value=one.difference, low=one.interval[0], high=one.interval[1])
            for mode, x, one in found
        ]

    levels = [Panel(title=env, measure="accuracy", lines={n: accuracy(n, env) for n in groups}) for env in envs]
    note = f"Mean over the runs of a group, with bars from the minimum to the maximum. {LEGEND}"
    figures = [caption_panels("Accuracy against tokens spent", note, levels)]
    if others:
        ends = (None, None)
        gaps = [
            Panel(title=e, measure="difference", ends=ends, lines={n: difference(n, e) for n in others}) for e in envs
        ]
        note = f"Accuracy minus {first} at the same budget, paired by task, with 95 % intervals over tasks."
        figures.append(caption_panels(f"Difference to {first}", note, gaps))
    return figures

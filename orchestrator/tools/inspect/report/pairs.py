"""Evaluations of different models against each other, task by task: those of one run, or two that a command names."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite, nan
from pathlib import Path
from typing import Any

from temper.orchestrator.evaluation.paired import TaskComparison, compare_envs
from temper.orchestrator.evaluation.record import Evaluation, RunRecord, read_evaluation, read_evaluations
from temper.orchestrator.run.checkpoint import steps
from temper.orchestrator.run.folder import RunDir, evaluations_of

HEAD = ("environment", "tasks", "first", "second", "difference", "95 % interval", "p", "tasks for 0.02", "0.05", "0.1")
"""The columns of a table of comparisons; the last three are how many tasks would show a difference of so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPair:
    """Two evaluations by their labels, and what comes of comparing them by environment."""

    first: str
    second: str
    envs: dict[str, TaskComparison]
    asked: tuple[str, ...] = ()
    """What the two were asked differently, in words."""
    chosen: bool = False
    """Whether one of them was chosen by its score on these tasks, which makes it too high: nothing says then how sure the
    difference is, and intervals and p values are NaN."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        envs = {env: found.as_json() for env, found in self.envs.items()}
        further = {"asked_differently": list(self.asked), "chosen_by_score": self.chosen}
        return {"first": self.first, "second": self.second, "envs": envs} | further

    def as_chosen(self) -> "EvaluationPair":
        """Return it as that of evaluations of which one was chosen by its score."""
        unsure = {env: replace(found, interval=(nan, nan), p=nan) for env, found in self.envs.items()}
        return replace(self, envs=unsure, chosen=True)


def all_pairs(evaluations: Sequence[Evaluation]) -> list[EvaluationPair]:
    """Compare every two evaluations, the earlier model first, that have the single tasks of an environment in common."""
    pairs = [_pair(one, other) for one, other in combinations(evaluations, 2)]
    return [pair for pair in pairs if pair.envs]


def step_pairs(run_dir: Path, record: RunRecord) -> list[EvaluationPair]:
    """Compare some of the evaluations between the steps of each instance: the first, the best and the last one, and those whose
    checkpoints are kept. Of these the first and the last one are chosen whatever their scores.
    """
    folder, pairs = RunDir(run_dir), []
    for name in record.stages:
        files = folder.step_evaluations(name)
        measured = zip(*record.series(evaluations_of(name), "avg_at_k"), strict=True)
        best = max(((value, step) for step, value in measured if step in files and isfinite(value)), default=None)
        ends, kept = {*list(files)[:1], *list(files)[-1:]}, set(steps(folder.checkpoints(name)))
        by_score = (set() if best is None else {best[1]}) | (kept if record.keeps_best else set())
        wanted = [step for step in files if step in ends | kept | by_score]
        read = {step: read_evaluation(files[step]) for step in wanted}
        for one, other in combinations(wanted, 2):
            pair = _pair(read[one], read[other])
            pairs += [pair.as_chosen() if (by_score - ends) & {one, other} else pair] if pair.envs else []
    return pairs


def compare_places(first: Path, second: Path) -> EvaluationPair:
    """Compare two evaluations: each a file that one left, or the folder of a run, whose last one counts.

    Raise `FileNotFoundError` where one is not there, `ValueError` where one has no single tasks or none in common.
    """
    one, other = _evaluation(first), _evaluation(second)
    for place, found in ((first, one), (second, other)):
        if not found.tasks:
            raise ValueError(f"{place} does not say what became of its single tasks; evaluate that model again")
    pair = _pair(one, other)
    if not any(found.tasks for found in pair.envs.values()):
        has = "; ".join(f"{place}: {', '.join(sorted(e.tasks))}" for place, e in ((first, one), (second, other)))
        raise ValueError(f"no task stands in both ({has}); evaluate both models on the same data")
    return replace(pair, first=str(first), second=str(second))


def lines(pair: EvaluationPair) -> list[str]:
    """Return a comparison for a terminal: a line that says what is compared, a table, and what was left out."""
    rows = [HEAD, *(_cells(env, found) for env, found in pair.envs.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    left = [f"{env}: left out are {found.left_out}" for env, found in pair.envs.items() if found.left_out]
    asked = [f"asked differently: {'; '.join(pair.asked)}"] if pair.asked else []
    return [f"first: {pair.first}", f"second: {pair.second}", *asked, "", *table, *left]


def _cells(env: str, found: TaskComparison) -> tuple[str, ...]:
    low, high = found.interval
    shares = (f"{found.first:.3f}", f"{found.second:.3f}", f"{found.difference:+.3f}", f"{low:+.3f} to {high:+.3f}")
    needed = (f"{found.needed[size] or '-'}" for size in ("0.02", "0.05", "0.1"))
    return (env, str(found.tasks), *shares, p_text(found.p), *needed)


def p_text(p: float) -> str:
    """Write a p value as a table shows it."""
    return "-" if p != p else "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def _pair(one: Evaluation, other: Evaluation) -> EvaluationPair:
    envs = compare_envs(one.tasks, other.tasks)
    return EvaluationPair(first=one.label, second=other.label, envs=envs, asked=_asked_differently(one, other))


def _asked_differently(one: Evaluation, other: Evaluation) -> tuple[str, ...]:
    both = [name for name in one.asked if name in other.asked and one.asked[name] != other.asked[name]]
    alone = sorted(one.asked.keys() ^ other.asked.keys())
    unknown = [f"only one says {', '.join(alone)}"] if alone else []
    return (*(f"{name} {one.asked[name]} and {other.asked[name]}" for name in both), *unknown)


def _evaluation(place: Path) -> Evaluation:
    if place.is_file():
        try:
            return read_evaluation(place)
        except ValueError as error:
            raise ValueError(f"{error}; name a file eval/LABEL.json that one left, or a run") from error
    if not place.is_dir():
        raise FileNotFoundError(f"{place} is neither the file of an evaluation nor a run, by its folder or its name")
    found = read_evaluations(place / "eval")
    if not found:
        raise ValueError(f"{place} has no evaluation; run the stage eval, or name a file that one left")
    return found[-1]

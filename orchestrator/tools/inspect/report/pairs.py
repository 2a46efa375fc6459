"""The comparison of two evaluations from the command line, task by task."""

from dataclasses import replace
from pathlib import Path

from rich.table import Table

from temper.orchestrator.evaluation.pairs import EvaluationPair, compare_evaluations
from temper.orchestrator.evaluation.record import Evaluation, read_evaluation, read_evaluations

HEAD = ("environment", "tasks", "first", "second", "difference", "95 % interval", "p", "tasks for 0.02", "0.05", "0.1")
"""The columns of a comparison. The last three are the numbers of tasks that would show such a difference."""


def compare_places(first: Path, second: Path) -> EvaluationPair:
    """Compare two evaluations. Each is an evaluation file, or a run's folder, of which the last evaluation counts.

    Raise `FileNotFoundError` if one does not exist, `ValueError` if one has no task results or none in common.
    """
    one, other = _evaluation(first), _evaluation(second)
    for place, found in ((first, one), (second, other)):
        if not found.tasks:
            raise ValueError(f"{place} has no results by task; evaluate that model again")
    pair = compare_evaluations(one, other)
    if not any(found.tasks for found in pair.envs.values()):
        has = "; ".join(f"{place}: {', '.join(sorted(e.tasks))}" for place, e in ((first, one), (second, other)))
        raise ValueError(f"the evaluations have no common task ({has}); evaluate both models on the same data")
    return replace(pair, first=str(first), second=str(second))


def pair_table(pair: EvaluationPair) -> Table:
    """Return a comparison for a terminal."""
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(HEAD):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for env, found in pair.envs.items():
        low, high = found.interval
        shares = (f"{found.first:.3f}", f"{found.second:.3f}", f"{found.difference:+.3f}", f"{low:+.3f} to {high:+.3f}")
        needed = (f"{found.needed[size] or '-'}" for size in ("0.02", "0.05", "0.1"))
        table.add_row(env, str(found.tasks), *shares, format_p(found.p), *needed)
    return table


def format_p(p: float) -> str:
    """Write a p value as a table shows it."""
    return "-" if p != p else "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def _evaluation(place: Path) -> Evaluation:
    if place.is_file():
        try:
            return read_evaluation(place)
        except ValueError as error:
            raise ValueError(f"{error}; name an evaluation file eval/LABEL.json, or a run") from error
    if not place.is_dir():
        raise FileNotFoundError(f"{place} is neither the file of an evaluation nor a run, by its folder or its name")
    found = read_evaluations(place / "eval")
    if not found:
        raise ValueError(f"{place} has no evaluation; run the stage eval, or name an evaluation file")
    return found[-1]

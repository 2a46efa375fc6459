"""The outcome of a run in one line: the change of each accuracy between evaluations, and the steps without a signal."""

from collections.abc import Iterator, Sequence
from math import isnan
from pathlib import Path

from temper.orchestrator.evaluation.paired import TaskComparison
from temper.orchestrator.evaluation.pairs import EvaluationPair, compare_evaluations
from temper.orchestrator.evaluation.record import EnvResult, Evaluation, RunRecord, read_run

UNEQUAL, ADVANTAGE = "rollout/nonzero_advantage", "train/advantage_abs"
NO_ADVANTAGE = 1e-6
"""The largest mean absolute advantage that is only rounding."""


def read_outcome(run_dir: Path) -> str:
    """Return the outcome of a run's folder. A file that can't be read is named, so that it does not fail a finished run."""
    try:
        return describe_outcome(read_run(run_dir))
    except (OSError, ValueError) as error:
        return f"the outcome can't be read: {error}"


def describe_outcome(record: RunRecord) -> str:
    """Return one line, with 95 % intervals paired by task, as in the comparisons of a report."""
    changes = list(_changes(record.evaluations)) or list(_changes(record.step_evaluations))
    known = [*map(_change_text, changes)] or [_level_text(record.evaluations)]
    return "; ".join([*known, *_signal_texts(record)])


def _changes(evaluations: Sequence[Evaluation]) -> Iterator[tuple[EvaluationPair, Evaluation]]:
    """Yield each evaluation, compared with the newest earlier one of another model, of the same settings if there is one."""
    for place, last in enumerate(evaluations):
        others = [one for one in evaluations[:place] if one.model is None or one.model != last.model]
        pairs = [compare_evaluations(one, last) for one in reversed(others)]
        if pairs:
            yield next((pair for pair in pairs if not pair.different_settings), pairs[0]), last


def _change_text(change: tuple[EvaluationPair, Evaluation]) -> str:
    pair, last = change
    settings = " (other settings)" if pair.different_settings else ""
    texts = [
        f"{env} {_difference_text(pair.envs[env])}"
        if env in pair.envs and pair.envs[env].tasks
        else f"{_accuracy_text(env, result)}, not comparable"
        for env, result in last.envs.items()
    ]
    return f"accuracy from {pair.first} to {pair.second}{settings}: {', '.join(texts)}"


def _difference_text(found: TaskComparison) -> str:
    """Return the accuracies and their difference. Its margin covers the whole paired interval."""
    low, high = found.interval
    margin = max(high - found.difference, found.difference - low)
    before, after = f"{found.first:.2f}", f"{found.second:.2f}"
    chance = ", may be chance" if low <= 0 <= high and before != after else ""
    among = f", over the {found.tasks} tasks that both scored" if found.left_out else ""
    shown = f"({round(found.difference, 2) + 0.0:+.2f} +- {margin:.2f}{chance}{among})"
    return f"unchanged at {after} {shown}" if before == after else f"{before} to {after} {shown}"


def _level_text(evaluations: Sequence[Evaluation]) -> str:
    """Return the accuracies of the only evaluation, or of none."""
    if not evaluations:
        return "nothing was evaluated"
    last = evaluations[-1]
    texts = ", ".join(_accuracy_text(env, result) for env, result in last.envs.items())
    return f"accuracy after {last.label}: {texts}; no other model was evaluated"


def _accuracy_text(env: str, result: EnvResult) -> str:
    if isnan(result.avg_at_k):
        return f"{env} without a score"
    low, high = result.interval
    return f"{env} {result.avg_at_k:.2f} ({low:.2f} to {high:.2f})"


def _signal_texts(record: RunRecord) -> Iterator[str]:
    for name in record.instances("rl"):
        steps = [row.values for row in record.rows if row.is_step_of(name) and UNEQUAL in row.values]
        if steps:
            silent = sum(not one[UNEQUAL] and one.get(ADVANTAGE, 0.0) <= NO_ADVANTAGE for one in steps)
            why = ", because all rewards of each group were equal" if silent else ""
            yield f"{silent} of {len(steps)} {'step' if len(steps) == 1 else 'steps'} of {name} had no signal{why}"

"""Comparisons of evaluations task by task: two of them, or all pairs of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from temper.orchestrator.evaluation.paired import TaskComparison, compare_envs
from temper.orchestrator.evaluation.record import Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPair:
    """Two evaluations by their labels, and their comparison by environment."""

    first: str
    second: str
    envs: dict[str, TaskComparison]
    different_settings: tuple[str, ...] = ()
    """The settings of answers that differ, in words."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        envs = {env: found.as_json() for env, found in self.envs.items()}
        return {
            "first": self.first,
            "second": self.second,
            "envs": envs,
            "different_settings": list(self.different_settings),
        }


def all_pairs(evaluations: Sequence[Evaluation]) -> list[EvaluationPair]:
    """Compare every two evaluations, the earlier model first, that have the single tasks of an environment in common."""
    pairs = [compare_evaluations(one, other) for one, other in combinations(evaluations, 2)]
    return [pair for pair in pairs if pair.envs]


def compare_evaluations(one: Evaluation, other: Evaluation) -> EvaluationPair:
    both = [name for name in one.asked if name in other.asked and one.asked[name] != other.asked[name]]
    different_settings = [f"{name} {one.asked[name]} and {other.asked[name]}" for name in both]
    if alone := sorted(one.asked.keys() ^ other.asked.keys()):
        different_settings.append(f"only one sets {', '.join(alone)}")
    envs = compare_envs(one.tasks, other.tasks)
    return EvaluationPair(first=one.label, second=other.label, envs=envs, different_settings=tuple(different_settings))

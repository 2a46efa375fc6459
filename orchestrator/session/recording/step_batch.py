"""The batch of a step: the answers as training takes them, and what it made of each token."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from temper.learner.token_records import TokenRecord
from temper.orchestrator.session.recording.trained_with import TrainedWith
from temper.rollout.trajectory import Group, Trajectory, WeightVersion

COMPUTED_BY = ("torch", "transformers", "deepspeed")
"""The packages whose version decides on the last digits of what is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """Step `step` of the instance `stage`. `version` is that of the weights that were trained.

    Of a group that was read back, tasks, texts and verdicts are not there; all that training reads of it is. `records` are
    those of the answers with a trained token, in the order of `TokenRecord.place`. `teacher` is the model of a loss that
    compares with one. `packages` are the versions by which it was computed, and the machine's kind.
    """

    stage: str
    step: int
    version: WeightVersion
    trained_with: TrainedWith
    groups: Sequence[Group]
    records: Sequence[TokenRecord]
    teacher: str | None
    packages: dict[str, str]

    @property
    def answers(self) -> list[Trajectory]:
        """The answers with a score, by their places."""
        return [answer for group in self.groups for answer in group.trajectories]

    @property
    def rows(self) -> list[int]:
        """The row of each answer with a score in the step's file of trajectories, which has the failed ones too."""
        rows: list[int] = []
        first = 0
        for group in self.groups:
            rows += range(first, first + len(group.trajectories))
            first += len(group.trajectories) + len(group.failed)
        return rows


@cache
def packages_here() -> dict[str, str]:
    """Return the versions of the packages that compute here, and the kind of the machine."""
    return {name: version(name) for name in COMPUTED_BY} | {"machine": platform.machine()}

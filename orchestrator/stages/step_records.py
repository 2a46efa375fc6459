"""What the learner made of the answers of a step, as it stands beside them in the step's file of trajectories."""

from collections.abc import Awaitable
from typing import Any

from temper.envs.core.pulse import LearnerDied
from temper.learner.token_records import TokenRecord
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.loop.deadline import Deadline, within
from temper.rollout.trajectory import Group, WeightVersion

TRUNCATED = "truncated"
"""Why an answer that ran into a limit on tokens has no trained token, where such answers carry no loss."""


async def records_of_step(learner: TrainerGroup, *, limit: Deadline, stage: str) -> list[TokenRecord]:
    """Return what the ranks keep of the last step; nothing where they have died or hang, which whoever calls next is told."""
    if learner.stuck:
        return []
    asking: Awaitable[list[TokenRecord]] = learner.token_records()
    try:
        return await within(limit, asking, stage=stage, waiting_for=lambda: "what the learner made of each token")
    except LearnerDied:
        return []


def training_rows(
    groups: list[Group], records: list[TokenRecord], *, version: WeightVersion, mask_truncated: bool
) -> list[dict[str, Any] | None]:
    """Return for each trajectory with a score what was made of it; None where there is no record of it.

    `version` is that of the weights that were trained.
    """
    by_place = {record.place: record.as_json() for record in records}
    rows: list[dict[str, Any] | None] = []
    for place, trajectory in enumerate(t for group in groups for t in group.trajectories):
        made = by_place.get(place)
        if made is None and mask_truncated and trajectory.truncated:
            made = {"untrained": TRUNCATED}
        rows.append(None if made is None else {"version": version.step} | made)
    return rows

"""A loop with empty hooks, for tests of the order of events."""

from dataclasses import fields
from typing import Any

from temper.orchestrator.loop.buffer import VersionCell
from temper.orchestrator.loop.deadline import Deadline, StopFlag, Waits, in_thread
from temper.orchestrator.loop.interfaces import Hooks
from temper.orchestrator.loop.loop import Loop
from temper.rollout.trajectory import Group, WeightVersion

LIMIT = Deadline(seconds=30.0, setting="rl.timeout_s")


async def nothing(given: object) -> None: ...


def plain_loop(**given: Any) -> Loop:
    """Return a loop. `given` replaces values of the loop, its hooks or its waits."""
    values: dict[str, Any] = {
        "version": VersionCell(WeightVersion(step=0)),
        "group_size": 2,
        "build_batches": lambda groups: None,
        "on_group": lambda group: group,
        "on_step": nothing,
        "save": nothing,
        "on_fault": nothing,
        "stage": "rl",
        "stop": StopFlag(),
        "limit": LIMIT,
        "push_limit": lambda nbytes: LIMIT,
    } | given
    build = values["build_batches"]

    async def build_batches(groups: list[Group]) -> None:
        await in_thread(build, groups)

    values["build_batches"] = build_batches
    parts = {}
    for name, kind in (("hooks", Hooks), ("waits", Waits)):
        parts[name] = kind(**{one.name: values.pop(one.name) for one in fields(kind) if one.name in values})
    return Loop(**values | parts)

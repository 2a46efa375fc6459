"""The buffer between rollout and learner: who may start, what is ready, and how far it may lag behind.

A slot is held from admission until the engines serve the weights that the group trained. There are
`(max_lag + 1) * groups_per_step` slots, and a step never leaves behind a group that could not wait for the next one,
so no group is trained more than `max_lag` versions after it was admitted.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any

from learner.losses.batch_advantages import differ
from orchestrator.deadline import beside
from orchestrator.mixture import Draw, Mixture
from rollout.trajectory import Group, Ticket, TurnFault, WeightVersion


@dataclass(slots=True, kw_only=True)
class _Slot:
    draw: Draw
    admitted: WeightVersion
    ticket: Ticket | None = None  # once its task is made
    group: Group | None = None


@dataclass(slots=True, kw_only=True)
class Dropped:
    """What was dropped since the last step: counts by reason, and the groups, whose rewards are measured all the same."""

    no_signal: int = 0
    failed: int = 0
    groups: list[Group] = field(default_factory=list)


class Buffer:
    """Slots of groups between admission and release. All methods belong to one event loop."""

    def __init__(
        self,
        *,
        groups_per_step: int,
        max_lag: int,
        max_drops: int,
        fewest: int = 2,
        next_ticket: int = 0,
        overridden: Collection[TurnFault] = (),
        signal: Callable[[list[float]], bool] = differ,
    ) -> None:
        """A group needs `fewest` answers. `signal` says of a group's rewards whether they teach anything. `overridden` are
        faults of a turn with an advantage of their own: a signal too.
        """
        if groups_per_step < 1 or max_lag < 0 or max_drops < 0:
            raise ValueError(
                f"groups_per_step={groups_per_step} must be at least 1, "
                f"max_lag={max_lag} and max_drops={max_drops} at least 0"
            )
        self._per_step = groups_per_step
        self._max_lag = max_lag
        self._max_drops = max_drops
        self._fewest = fewest
        self._overridden = overridden
        self._signal = signal
        self._slots: dict[int, _Slot] = {}
        self._training: list[int] = []
        self._redo: list[Draw] = []
        self._next = next_ticket
        self._changed = asyncio.Condition()
        self._put_at = 0.0
        self.dropped = Dropped()

    @property
    def capacity(self) -> int:
        """How many groups may be on their way at once."""
        return (self._max_lag + 1) * self._per_step

    async def admit(self, mixture: Mixture, version: "VersionCell") -> Ticket:
        """The right to start the next group, once a slot is free. Its task is made in a thread: some take minutes."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._slots) < self.capacity)
            number, draw = self._next, self._redo.pop(0) if self._redo else mixture.draw()
            self._next += 1
            slot = self._slots[number] = _Slot(draw=draw, admitted=version.value)
        task = await beside(mixture.task, draw)
        slot.ticket = Ticket(number=number, task=task, admitted=slot.admitted)
        return slot.ticket

    async def put(self, group: Group) -> None:
        """A finished group. One without signal or without enough answers frees its slot.

        From `max_drops` a step on, groups without signal are kept, so that a step always comes to an end.
        """
        self._put_at = monotonic()
        async with self._changed:
            lost = len(group.trajectories) < self._fewest
            if lost:
                self.dropped.failed += 1
                self._drop(group)
            elif (
                not (self._signal(group.rewards_G) or group.has_fault(self._overridden))
                and self.dropped.no_signal < self._max_drops
            ):
                self.dropped.no_signal += 1
                self._drop(group)
            else:
                self._slots[group.ticket.number].group = group
            self._changed.notify_all()

    async def take(self, version: WeightVersion) -> list[Group]:
        """The groups of the next step, oldest first, once there are enough and none that is due is missing."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._ready(version))
            waiting = [n for n in sorted(self._slots) if n not in self._training]
            done = [n for n in waiting if self._slots[n].group is not None]
            done.sort(key=lambda n: (self._slots[n].admitted.step, n))
            self._training = sorted(done[: self._per_step])
            return [group for n in self._training if (group := self._slots[n].group) is not None]

    async def release(self) -> None:
        """The engines serve the weights of the last step: its slots are free again."""
        async with self._changed:
            for number in self._training:
                del self._slots[number]
            self._training = []
            self.dropped = Dropped()
            self._changed.notify_all()

    def _drop(self, group: Group) -> None:
        del self._slots[group.ticket.number]
        self.dropped.groups.append(group)

    def _ready(self, version: WeightVersion) -> bool:
        slots = [slot for number, slot in self._slots.items() if number not in self._training]
        if sum(slot.group is not None for slot in slots) < self._per_step:
            return False
        for steps_left in range(self._max_lag):
            # Groups that must be trained within this many further steps, of which all but those steps' share now.
            due = [s for s in slots if s.admitted.step + self._max_lag <= version.step + steps_left]
            if sum(slot.group is None for slot in due) > steps_left * self._per_step:
                return False
        return True

    def last_sign(self) -> float:
        """When a group was finished last, on the monotonic clock."""
        return self._put_at

    def waiting_for(self) -> str:
        """What a stuck `take` waits for, for people."""
        missing = [slot for slot in self._slots.values() if slot.group is None]
        shown = ", ".join(_named(slot) for slot in missing[:3])
        return f"{len(missing)} groups that are still generated ({shown})"

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: the next ticket's number, and the draws admitted but not trained on yet."""
        pending = [asdict(self._slots[n].draw) for n in sorted(self._slots) if n not in self._training]
        return {"next_ticket": self._next, "pending": [*pending, *(asdict(draw) for draw in self._redo)]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint: its pending draws are admitted first, so that none is lost."""
        self._next = int(state["next_ticket"])
        self._redo = [Draw(**draw) for draw in state["pending"]]


@dataclass(slots=True)
class VersionCell:
    """The version that the engines serve now."""

    value: WeightVersion


def _named(slot: _Slot) -> str:
    if slot.ticket is None:
        return f"the making of task {slot.draw.index} of {slot.draw.env}"
    return f"#{slot.ticket.number} {slot.ticket.task.env}/{slot.ticket.task.key}"

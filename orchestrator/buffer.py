"""The buffer between rollout and learner: who may start, what is ready, and how far it may lag behind.

A slot is held from admission until the engines serve the weights that the group trained. There are
`(max_lag + 1) * groups_per_step` slots, and a step never leaves behind a group that could not wait for the next one,
so no group is trained more than `max_lag` versions after it was admitted.

Example: `groups_per_step = 2` and `max_lag = 1` make four slots. A group is written as its name and the version at which it
was admitted, in capitals once it is ready.

    version 0   a0 b0 c0 d0   four of four slots are held, nobody else may start
                a0 B0 C0 d0   `take` gives b and c: two are ready, and a and d, due at version 1, can both wait a step
    version 1   a0 d0 e1 f1   `release` made room for two
                a0 d0 E1 F1   `take` waits although two are ready: a and d are due now (0 + max_lag)
                A0 D0 E1 F1   `take` gives a and d, the oldest first
    version 2   E1 F1 g2 h2
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from enum import Enum
from time import monotonic
from typing import Any

from learner.losses.advantages import differ
from orchestrator.deadline import in_thread
from orchestrator.mixture import Draw, Mixture
from rollout.trajectory import Group, Ticket, TurnFault, WeightVersion


class SlotState(Enum):
    """What a held slot is doing, in this order. A group that is dropped frees its slot at once."""

    MAKING = "making"  # its task is made
    GENERATING = "generating"  # its answers are sampled and judged
    READY = "ready"  # its group waits for a step
    TRAINING = "training"  # its group is in the current step, and the engines do not serve the new weights yet


@dataclass(slots=True, kw_only=True)
class _Slot:
    draw: Draw
    admitted: WeightVersion
    state: SlotState = SlotState.MAKING
    ticket: Ticket | None = None  # from `GENERATING` on
    group: Group | None = None  # from `READY` on


@dataclass(slots=True, kw_only=True)
class Dropped:
    """What was dropped since the last step: counts by reason, and the groups, whose rewards are measured all the same."""

    no_signal: int = 0
    failed: int = 0
    groups: list[Group] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How many slots were in each state, in the mean over the time since the last release; the rest were free."""

    slots: int
    held: dict[SlotState, float]

    @property
    def free(self) -> float:
        return self.slots - sum(self.held.values())


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
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Begin without slots. A group needs `fewest` answers. `signal` says of a group's rewards whether they teach anything.
        `overridden` are faults of a turn with an advantage of their own: a signal too.
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
        self._slots: dict[int, _Slot] = {}  # by number, which is the order of admission
        self._redo: list[Draw] = []
        self._next = next_ticket
        self._changed = asyncio.Condition()
        self._put_at = 0.0
        self._clock = clock
        self._meter = _Meter()
        self.dropped = Dropped()

    @property
    def capacity(self) -> int:
        """How many groups may be on their way at once."""
        return (self._max_lag + 1) * self._per_step

    async def admit(self, mixture: Mixture, version: "VersionCell") -> Ticket:
        """Wait for a free slot, and return the right to start the next group.

        Its task is made in a thread: some take minutes.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._slots) < self.capacity)
            number, draw = self._next, self._redo.pop(0) if self._redo else mixture.draw()
            self._next += 1
            self._measure()
            slot = self._slots[number] = _Slot(draw=draw, admitted=version.value)
        task = await in_thread(mixture.task, draw)
        self._measure()
        slot.state = SlotState.GENERATING
        slot.ticket = Ticket(number=number, task=task, admitted=slot.admitted)
        return slot.ticket

    async def put(self, group: Group) -> None:
        """Take a finished group in. One without signal or without enough answers frees its slot.

        From `max_drops` a step on, groups without signal are kept, so that a step always comes to an end.
        """
        self._put_at = self._clock()
        async with self._changed:
            self._measure()
            if len(group.trajectories) < self._fewest:
                self.dropped.failed += 1
                self._drop(group)
            elif not self._teaches(group) and self.dropped.no_signal < self._max_drops:
                self.dropped.no_signal += 1
                self._drop(group)
            else:
                slot = self._slots[group.ticket.number]
                slot.state, slot.group = SlotState.READY, group
            self._changed.notify_all()

    async def take(self, version: WeightVersion) -> list[Group]:
        """Wait until a step can be made, and return its groups: the oldest that are ready, in their order."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._step_is_ready(version))
            self._measure()
            groups = []
            for slot in self._in(SlotState.READY)[: self._per_step]:
                assert slot.group is not None
                slot.state = SlotState.TRAINING
                groups.append(slot.group)
            return groups

    def give_back(self) -> None:
        """Let the groups of a step that the learner did not begin wait again."""
        self._measure()
        for slot in self._in(SlotState.TRAINING):
            slot.state = SlotState.READY

    async def release(self) -> None:
        """Free the slots of the last step: the engines serve its weights."""
        async with self._changed:
            self._slots = {n: slot for n, slot in self._slots.items() if slot.state is not SlotState.TRAINING}
            self.dropped = Dropped()
            self._meter = _Meter(self._clock())
            self._changed.notify_all()

    def occupancy(self) -> Occupancy:
        """Return how the slots were used since the last release."""
        self._measure()
        return Occupancy(slots=self.capacity, held=self._meter.means())

    def _measure(self) -> None:
        """Count the time until now, before something changes."""
        self._meter.count([slot.state for slot in self._slots.values()], now=self._clock())

    def _in(self, *states: SlotState) -> list[_Slot]:
        return [slot for slot in self._slots.values() if slot.state in states]

    def _teaches(self, group: Group) -> bool:
        return self._signal(group.rewards_G) or group.has_fault(self._overridden)

    def _drop(self, group: Group) -> None:
        del self._slots[group.ticket.number]
        self.dropped.groups.append(group)

    def _step_is_ready(self, version: WeightVersion) -> bool:
        """Return whether enough groups are ready, and none that can't wait for a later step is missing.

        A group is due `max_lag` versions after its admission. Of those that are due within so many further steps, no more
        may be missing now than those steps can train.
        """
        if len(self._in(SlotState.READY)) < self._per_step:
            return False
        missing = self._in(SlotState.MAKING, SlotState.GENERATING)
        steps_left = [slot.admitted.step + self._max_lag - version.step for slot in missing]
        return all(
            sum(left <= further for left in steps_left) <= further * self._per_step for further in range(self._max_lag)
        )

    def last_sign(self) -> float:
        """Return when a group was finished last, on the monotonic clock."""
        return self._put_at

    def waiting_for(self) -> str:
        """Return a line for people on the groups that a stuck `take` waits for."""
        missing = self._in(SlotState.MAKING, SlotState.GENERATING)
        shown = ", ".join(_named(slot) for slot in missing[:3])
        return f"{len(missing)} groups that are still generated ({shown})"

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds: the next ticket's number, and the draws admitted but not trained on yet."""
        pending = [asdict(slot.draw) for slot in self._slots.values() if slot.state is not SlotState.TRAINING]
        return {"next_ticket": self._next, "pending": [*pending, *(asdict(draw) for draw in self._redo)]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint: its pending draws are admitted first, so that none is lost."""
        self._next = int(state["next_ticket"])
        self._redo = [Draw(**draw) for draw in state["pending"]]


class _Meter:
    """Adds up how long how many slots were in each state."""

    def __init__(self, began: float | None = None) -> None:
        """Time is counted from `began` on, or from the first count."""
        self._seconds = dict.fromkeys(SlotState, 0.0)
        self._began = self._counted = began

    def count(self, states: list[SlotState], *, now: float) -> None:
        """Add the time since the last count, in which the slots were in these states."""
        if self._began is None or self._counted is None:
            self._began = self._counted = now
        for state in states:
            self._seconds[state] += now - self._counted
        self._counted = now

    def means(self) -> dict[SlotState, float]:
        """Return the mean number of slots in each state up to the last count."""
        passed = 0.0 if self._began is None or self._counted is None else self._counted - self._began
        return {state: seconds / passed if passed else 0.0 for state, seconds in self._seconds.items()}


@dataclass(slots=True)
class VersionCell:
    """The version that the engines serve now."""

    value: WeightVersion


def _named(slot: _Slot) -> str:
    if slot.ticket is None:
        return f"the making of task {slot.draw.index} of {slot.draw.env}"
    return f"#{slot.ticket.number} {slot.ticket.task.label}"

"""The buffer between rollout and learner: it admits groups, holds finished ones and bounds their lag.

A group holds a slot from its admission until the engines serve the weights that it trained. There are at most `(max_lag + 1)
* groups_per_step` slots, and a step takes every group that cannot wait for the next step. So no group trains more than
`max_lag` versions after its admission. The mean lag is at most `slots / groups_per_step - 1`: with fewer slots only the slow
groups are old. If a step begins before the engines serve the previous weights, both steps hold their slots.

Example with `groups_per_step = 2` and `max_lag = 1`, so four slots. `a0` is group a, admitted at version 0. A capital marks a
finished group.

    version 0   a0 b0 c0 d0   all slots are held, so no group starts
                a0 B0 C0 d0   `take` returns b and c. a and d are due at version 1 and can wait
    version 1   a0 d0 e1 f1   `release` has freed two slots
                a0 d0 E1 F1   `take` waits although two are ready: a and d are due now (0 + max_lag)
                A0 D0 E1 F1   `take` returns a and d, the oldest first
    version 2   E1 F1 g2 h2
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from time import monotonic
from typing import Literal

from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.loop.mixture import Draw, Mixture
from temper.orchestrator.loop.ticket_log import TicketLog, Totals
from temper.rewards.rounding import has_different_rewards
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.trajectory import Group, Ticket, TurnFault, WeightVersion


class SlotState(Enum):
    """The states of a held slot, in order. A dropped group frees its slot at once."""

    MAKING = "making"  # the task is created
    GENERATING = "generating"  # the answers are sampled and scored
    READY = "ready"  # the group waits for a step
    TRAINING = "training"  # the group is in the current step, and the engines do not serve the new weights yet


MISSING = (SlotState.MAKING, SlotState.GENERATING)
"""The states of a slot whose group no step can take yet."""


@dataclass(slots=True, kw_only=True)
class Slot:
    """A place for one group, from its admission to the release of the step that trains it.

    A finished group stays `GENERATING` while the result of earlier groups decides whether it is dropped.
    """

    number: int
    draw: Draw
    admitted: WeightVersion
    state: SlotState = SlotState.MAKING
    ticket: Ticket | None = None  # from `GENERATING` on
    group: Group | None = None  # from `READY` on
    trained_at: int = 0  # the step that trained it; 0 before

    @property
    def label(self) -> str:
        if self.ticket is None:
            return f"creation of task {self.draw.index} of {self.draw.env}"
        return f"#{self.number} {self.ticket.task.label}"


@dataclass(slots=True, kw_only=True)
class Dropped:
    """The groups dropped since the last step, with counts by reason. Their rewards count in the metrics."""

    zero_advantage: int = 0
    failed: int = 0
    groups: list[Group] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    """The draws of `groups`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Mean slots by state since the last call. The other slots were free."""

    slots: int
    held: dict[SlotState, float]

    @property
    def free(self) -> float:
        return self.slots - sum(self.held.values())


class HeldSlots:
    """The held slots in order of admission. Every change but `reset` costs the same for any number of slots."""

    def __init__(self, slots: Iterable[Slot] = ()) -> None:
        self._by_number: dict[int, Slot] = {}
        self._missing: dict[int, Slot] = {}  # slots that no step can take yet, in order of admission
        self._undecided: set[int] = set()  # of these, the slots with a finished group
        self._due: Counter[int] = Counter()  # of these, the number of slots by version of admission
        self.counts = dict.fromkeys(SlotState, 0)
        for slot in slots:
            self.add(slot)

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._by_number.values())

    def __getitem__(self, number: int) -> Slot:
        return self._by_number[number]

    def add(self, slot: Slot) -> None:
        self._by_number[slot.number] = slot
        self.counts[slot.state] += 1
        if slot.state in MISSING:
            self._missing[slot.number] = slot
            self._due[slot.admitted.step] += 1
            if slot.group is not None:
                self._undecided.add(slot.number)

    def enter(self, slot: Slot, state: SlotState) -> None:
        if slot.state in MISSING and state not in MISSING:
            self._found(slot)
        self.counts[slot.state] -= 1
        self.counts[state] += 1
        slot.state = state

    def finish(self, slot: Slot, group: Group) -> None:
        """Store the finished group of a slot whose result is still undecided."""
        slot.group = group
        self._undecided.add(slot.number)

    def reset(self, slot: Slot) -> None:
        """Make a slot as it was after its admission: without a ticket and a group, at its place in the order."""
        if slot.state in MISSING:
            self._found(slot)
        self.counts[slot.state] -= 1
        slot.state, slot.ticket, slot.group = SlotState.MAKING, None, None
        self.counts[slot.state] += 1
        self._due[slot.admitted.step] += 1
        self._missing = {one.number: one for one in self if one.state in MISSING}

    def remove(self, slot: Slot) -> None:
        if slot.state in MISSING:
            self._found(slot)
        self.counts[slot.state] -= 1
        del self._by_number[slot.number]

    def in_state(self, state: SlotState) -> list[Slot]:
        return [slot for slot in self if slot.state is state] if self.counts[state] else []

    @property
    def missing(self) -> list[Slot]:
        """The slots without a decided group, in order."""
        return list(self._missing.values())

    @property
    def any_undecided(self) -> bool:
        return bool(self._undecided)

    def missing_until(self, version: int) -> int:
        """Return the number of missing slots admitted at or before a version."""
        return sum(slots for admitted, slots in self._due.items() if admitted <= version)

    def _found(self, slot: Slot) -> None:
        del self._missing[slot.number]
        self._undecided.discard(slot.number)
        self._due[slot.admitted.step] -= 1
        if not self._due[slot.admitted.step]:
            del self._due[slot.admitted.step]


class Meter:
    """Accumulates slot seconds by state."""

    def __init__(self, began: float | None = None) -> None:
        """Time starts at `began`, or at the first count."""
        self._seconds = dict.fromkeys(SlotState, 0.0)
        self._began = self._counted = began

    def count(self, held: Mapping[SlotState, int], *, now: float) -> None:
        """Add the time since the last count, in which `held` slots were in each state."""
        if self._began is None or self._counted is None:
            self._began = self._counted = now
        for state, slots in held.items():
            self._seconds[state] += slots * (now - self._counted)
        self._counted = now

    def means(self) -> dict[SlotState, float]:
        passed = 0.0 if self._began is None or self._counted is None else self._counted - self._began
        return {state: seconds / passed if passed else 0.0 for state, seconds in self._seconds.items()}


Held = Literal["ready", "undecided", "dropped"]
"""State of a finished group: it waits for a step, waits for a decision on earlier groups, or was dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTicket:
    """A ticket without a result: its number, from which its seeds derive, and its task's draw."""

    number: int
    draw: Draw
    admitted: int
    """The version that the engines served at its admission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """A finished group that is still needed, with the draw that recreates its task."""

    held: Held
    draw: Draw
    group: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferState:
    """A buffer between two steps. `zero_advantage` and `failed` count the groups dropped since the last step."""

    next_ticket: int
    totals: Totals
    tickets: tuple[HeldTicket, ...]
    zero_advantage: int = 0
    failed: int = 0
    groups: tuple[HeldGroup, ...] = ()


def _fill(slot: Slot, held: HeldGroup) -> None:
    slot.ticket = replace(held.group.ticket, admitted=slot.admitted)
    slot.group = replace(held.group, ticket=slot.ticket)
    slot.state = SlotState.READY if held.held == "ready" else SlotState.GENERATING


def _counts(group: Group) -> dict[str, int]:
    answers, failed = group.trajectories, group.failed
    tokens = sum(answer.all_sampled_tokens for answer in (*answers, *failed))
    return {"answers": len(answers), "failed": len(failed), "tokens": tokens}


class Buffer:
    """Slots of groups from admission to release. All methods run in one event loop."""

    def __init__(
        self,
        *,
        groups_per_step: int,
        max_lag: int,
        max_replaced_groups: int,
        slots: int | None = None,
        min_answers: int = 2,
        next_ticket: int = 0,
        overridden: Collection[TurnFault] = (),
        sampling: Sampling = PLAIN,
        has_advantage: Callable[[Group], bool] = lambda group: has_different_rewards(group.rewards_G),
        event_log: TicketLog = lambda event, values: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Create a buffer of `slots`, by default the most that `max_lag` allows.

        A group with fewer than `min_answers` answers fails. `has_advantage` returns whether a group has a nonzero advantage. A
        group with one of the turn faults `overridden` always has one.
        """
        if groups_per_step < 1 or max_lag < 0 or max_replaced_groups < 0:
            raise ValueError(
                f"groups_per_step={groups_per_step} must be at least 1, "
                f"max_lag={max_lag} and max_replaced_groups={max_replaced_groups} at least 0"
            )
        self.capacity = slots or (max_lag + 1) * groups_per_step
        assert groups_per_step <= self.capacity <= (max_lag + 1) * groups_per_step, slots
        self.max_lag = max_lag
        self._per_step, self._max_replaced_groups = groups_per_step, max_replaced_groups
        self._min_answers = min_answers
        self._overridden, self._has_advantage = overridden, has_advantage
        self._sampling = sampling
        self._slots = HeldSlots()
        self._again: deque[tuple[Slot, str]] = deque()  # slots whose tickets are issued again, and why
        self._later: deque[HeldTicket] = deque()  # tickets of a checkpoint that have no slot yet
        self._next = next_ticket
        self._totals = Totals()  # without `in_flight`, which `totals` counts
        self._event_log = event_log
        self._changed = asyncio.Condition()
        self._put_at = 0.0
        self._clock, self._meter = clock, Meter()
        self.dropped = Dropped()

    @property
    def slots(self) -> dict[int, tuple[str, SlotState]]:
        """Environment and state of the held slots, by ticket number."""
        return {slot.number: (slot.draw.env, slot.state) for slot in self._slots}

    @property
    def unfinished(self) -> set[int]:
        """Numbers of the tickets that hold a slot without a finished group."""
        return {slot.number for slot in self._slots if slot.group is None}

    async def admit(self, mixture: Mixture, version: "VersionCell") -> Ticket:
        """Wait for a free slot and return the ticket of the next group. Tickets of a checkpoint come first.

        A thread creates the task, since some tasks take minutes.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._again or len(self._slots) < self.capacity)
            self._measure()
            slot = self._next_slot(mixture, version.value)
        task = await in_thread(mixture.task, slot.draw)
        self._measure()
        self._slots.enter(slot, SlotState.GENERATING)
        slot.ticket = Ticket(number=slot.number, task=task, admitted=slot.admitted, sampling=self._sampling)
        return slot.ticket

    def _next_slot(self, mixture: Mixture, version: WeightVersion) -> Slot:
        """Return the next slot: of a checkpoint, or for a new draw."""
        if self._again:
            slot, why = self._again.popleft()
            self._event_log("reissued", {"ticket": slot.number, "why": why})
            return slot
        if self._later:
            held = self._later.popleft()
            slot = Slot(number=held.number, draw=held.draw, admitted=version)
            self._slots.add(slot)
            self._event_log("reissued", {"ticket": slot.number, "why": "restored"})
        else:
            slot = Slot(number=self._next, draw=mixture.draw(), admitted=version)
            self._slots.add(slot)
            self._next += 1
            self._totals = replace(self._totals, issued=self._totals.issued + 1)
            admitted = {"ticket": slot.number, **asdict(slot.draw), "version": version.step}
            self._event_log("admitted", admitted)  # last, since it may fail: no task is lost then
        return slot

    async def put(self, group: Group) -> None:
        """Store a finished group. A group with zero advantage or too few answers frees its slot.

        After `max_replaced_groups` drops in a step, groups with zero advantage are kept, so that each step ends. At lag 0 the
        first of them by ticket are dropped, so that the order of completion does not matter. With lag, no slot waits for
        that.
        """
        self._put_at = self._clock()
        async with self._changed:
            self._measure()
            slot = self._slots[group.ticket.number]
            self._event_log("finished", {"ticket": slot.number, **_counts(group)})
            if len(group.trajectories) < self._min_answers:
                self._fail(slot, group)
            else:
                self._slots.finish(slot, group)
                self._slots.enter(slot, SlotState.READY if self._has_nonzero_advantage(group) else SlotState.GENERATING)
            self._decide()
            self._changed.notify_all()

    def _decide(self) -> None:
        """Drop or keep groups with zero advantage, as far as the earlier groups are known."""
        if not self._slots.any_undecided:
            return
        earlier = 0  # earlier groups without a known result
        for slot in self._slots.missing:
            if slot.group is not None and self.dropped.zero_advantage + earlier < self._max_replaced_groups:
                self._drop(slot, slot.group)
            elif slot.group is not None and self.dropped.zero_advantage >= self._max_replaced_groups:
                self._slots.enter(slot, SlotState.READY)
            elif self.max_lag == 0:
                earlier += 1

    async def take(self, version: WeightVersion) -> list[Group]:
        """Wait until a step is ready. Return its groups, the oldest ready ones, in order."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._step_is_ready(version))
            self._measure()
            groups = []
            for slot in self._slots.in_state(SlotState.READY)[: self._per_step]:
                assert slot.group is not None
                self._slots.enter(slot, SlotState.TRAINING)
                groups.append(slot.group)
            return groups

    def return_taken(self) -> None:
        """Return the groups of a step that the learner did not begin to the ready ones."""
        self._measure()
        for slot in self._taken():
            self._slots.enter(slot, SlotState.READY)

    async def reissue(self, tickets: Collection[int]) -> None:
        """Reissue tickets of the step, whose turns are lost. Return its other groups to the ready ones."""
        async with self._changed:
            self.return_taken()
            for slot in (slot for slot in self._slots if slot.number in tickets):
                self._slots.reset(slot)
                self._again.append((slot, "turns_lost"))
            self._changed.notify_all()

    async def record_trained(self, step: int) -> Dropped:
        """Record that the learner trained the taken groups. Return the groups dropped since the last step."""
        async with self._changed:
            self._measure()
            for slot in self._taken():
                slot.trained_at = step
                self._totals = replace(self._totals, trained=self._totals.trained + 1)
                self._event_log("trained", {"ticket": slot.number, "step": step})
            self._event_log("step", {"step": step} | asdict(self.totals()))
            dropped, self.dropped = self.dropped, Dropped()
            self._decide()
            self._changed.notify_all()
            return dropped

    async def release(self, step: int) -> None:
        """Free the slots of a step, whose weights the engines now serve."""
        async with self._changed:
            self._measure()
            self._slots = HeldSlots(slot for slot in self._slots if slot.trained_at != step)
            self._changed.notify_all()

    def totals(self) -> Totals:
        in_flight = sum(not slot.trained_at for slot in self._slots) + len(self._later)
        return replace(self._totals, in_flight=in_flight)

    def occupancy(self) -> Occupancy:
        """Return the use of the slots since the last call."""
        self._measure()
        means, self._meter = self._meter.means(), Meter(self._clock())
        return Occupancy(slots=self.capacity, held=means)

    def _measure(self) -> None:
        self._meter.count(self._slots.counts, now=self._clock())

    def _taken(self) -> list[Slot]:
        """Return the slots of the step that the learner has not finished yet."""
        return [slot for slot in self._slots.in_state(SlotState.TRAINING) if not slot.trained_at]

    def _has_nonzero_advantage(self, group: Group) -> bool:
        return self._has_advantage(group) or group.has_fault(self._overridden)

    def _drop(self, slot: Slot, group: Group) -> None:
        self._event_log("dropped", {"ticket": slot.number, "why": "zero_advantage"})
        self._totals = replace(self._totals, dropped=self._totals.dropped + 1)
        self.dropped.zero_advantage += 1
        self._discard(slot, group)

    def _fail(self, slot: Slot, group: Group) -> None:
        kinds = Counter(failure.kind.value for failure in group.failures)
        why = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        self._event_log("failed", {"ticket": slot.number, "why": why})
        self._totals = replace(self._totals, failed=self._totals.failed + 1)
        self.dropped.failed += 1
        self._discard(slot, group)

    def _discard(self, slot: Slot, group: Group) -> None:
        """Free the slot of a group that is not trained. Its rewards still count in the step's metrics."""
        self._slots.remove(slot)
        self.dropped.groups.append(group)
        self.dropped.draws.append(slot.draw)

    def _step_is_ready(self, version: WeightVersion) -> bool:
        """Return whether enough groups are ready and no missing group is due before a later step.

        A group is due `max_lag` versions after its admission. For each number of further steps, the missing groups due within
        them must fit into these steps.
        """
        if self._slots.counts[SlotState.READY] < self._per_step:
            return False
        now = version.step - self.max_lag
        return all(
            self._slots.missing_until(now + further) <= further * self._per_step for further in range(self.max_lag)
        )

    def last_progress(self) -> float:
        """Return the time of the last finished group, on the monotonic clock."""
        return self._put_at

    def waiting_for(self) -> str:
        """Describe the groups that a stuck `take` waits for."""
        missing = self._slots.missing
        shown = ", ".join(slot.label for slot in missing[:3])
        return f"{len(missing)} unfinished groups ({shown})"

    def state(self) -> BufferState:
        """Return the state for a checkpoint: all tickets without a result, and the finished groups."""
        tickets, groups, dropped = [], [], self.dropped
        for slot in (slot for slot in self._slots if not slot.trained_at):
            tickets.append(HeldTicket(number=slot.number, draw=slot.draw, admitted=slot.admitted.step))
            if slot.group is not None:
                held: Held = "undecided" if slot.state is SlotState.GENERATING else "ready"
                groups.append(HeldGroup(held=held, draw=slot.draw, group=slot.group))
        for draw, group in zip(dropped.draws, dropped.groups, strict=True):
            groups.append(HeldGroup(held="dropped", draw=draw, group=group))
        return BufferState(
            next_ticket=self._next,
            totals=self.totals(),
            tickets=(*tickets, *self._later),
            zero_advantage=dropped.zero_advantage,
            failed=dropped.failed,
            groups=tuple(groups),
        )

    def restore(self, state: BufferState, *, was: WeightVersion, now: WeightVersion, envs: Collection[str]) -> set[int]:
        """Resume from a checkpoint made at version `was`, whose weights the engines serve as version `now`.

        Tickets keep their numbers. Tickets of environments outside `envs` are dropped. Return the tickets that keep their
        partial groups: the others would be too late and start again.
        """
        self._next, self._totals = state.next_ticket, state.totals
        dropped = [one for one in state.groups if one.held == "dropped"]
        groups, draws = [one.group for one in dropped], [one.draw for one in dropped]
        self.dropped = Dropped(zero_advantage=state.zero_advantage, failed=state.failed, groups=groups, draws=draws)
        for gone in (ticket for ticket in state.tickets if ticket.draw.env not in envs):
            self._event_log("dropped", {"ticket": gone.number, "why": "no_share"})
            self._totals = replace(self._totals, dropped=self._totals.dropped + 1)
        kept = [ticket for ticket in state.tickets if ticket.draw.env in envs]
        self._later = deque(kept[self.capacity :])
        finished = {one.group.ticket.number: one for one in state.groups if one.held != "dropped"}
        slots, resumed = self._placed(kept[: self.capacity], finished, was=was, now=now)
        self._slots = HeldSlots(slots)
        self._again = deque((slot, "restored") for slot in slots if slot.group is None)
        self._decide()
        return resumed

    def _placed(
        self, tickets: list[HeldTicket], finished: dict[int, HeldGroup], *, was: WeightVersion, now: WeightVersion
    ) -> tuple[list[Slot], set[int]]:
        """Return the slots of a checkpoint's tickets without any late one, and the tickets that resume.

        A ticket keeps its lag from version `was` at version `now`. The ticket at place n waits n // `groups_per_step` steps.
        If changed settings make one too late, it starts again, and so do all after it: a step takes the first by number,
        which must be due first.
        """
        slots, resumed, late = [], set(), False
        for place, ticket in enumerate(tickets):
            late = late or ticket.admitted - was.step + self.max_lag < place // self._per_step
            admitted = now if late else WeightVersion(step=ticket.admitted - was.step + now.step)
            slot = Slot(number=ticket.number, draw=ticket.draw, admitted=admitted)
            slots.append(slot)
            if not late:
                resumed.add(ticket.number)
                if ticket.number in finished:
                    _fill(slot, finished[ticket.number])
        return slots, resumed


@dataclass(slots=True)
class VersionCell:
    """`value` is the version that the engines serve. `learnt` is the learner's version, which is ahead during a push."""

    value: WeightVersion
    learnt: WeightVersion = field(init=False)

    def __post_init__(self) -> None:
        self.learnt = self.value

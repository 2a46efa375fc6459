"""The buffer between rollout and learner: who may start, what is ready, and how far it may lag behind.

A slot is held from admission until the engines serve the weights that the group trained. There are at most
`(max_lag + 1) * groups_per_step` slots, and a step never leaves behind a group that could not wait for the next one,
so no group is trained more than `max_lag` versions after it was admitted. That holds too where a step begins before the
engines serve the weights of the one before: both hold their slots then, and the others are fewer by as many. A trained group
held a slot for a step longer than it is versions behind, so the mean lag is at most `slots / groups_per_step - 1`: with fewer
slots only the slow ones are old.

Example: `groups_per_step = 2` and `max_lag = 1`, four slots. A group is written as its name and the version at which it
was admitted, in capitals once it is ready.

    version 0   a0 b0 c0 d0   four of four slots are held, nobody else may start
                a0 B0 C0 d0   `take` gives b and c: two are ready, and a and d, due at version 1, can both wait a step
    version 1   a0 d0 e1 f1   `release` made room for two
                a0 d0 E1 F1   `take` waits although two are ready: a and d are due now (0 + max_lag)
                A0 D0 E1 F1   `take` gives a and d, the oldest first
    version 2   E1 F1 g2 h2
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from time import monotonic
from typing import Literal

from temper.learner.losses.advantages import differ
from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.loop.mixture import Draw, Mixture
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.trajectory import Group, Ticket, TurnFault, WeightVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What became of the tickets of a stage, from its first step on.

    `in_flight` are those of which nothing is decided yet: their groups are made, sampled, or wait for a step.
    """

    issued: int = 0
    trained: int = 0
    dropped: int = 0
    failed: int = 0
    in_flight: int = 0

    @property
    def is_balanced(self) -> bool:
        """Whether every ticket that was issued is in exactly one place."""
        return self.issued == self.trained + self.dropped + self.failed + self.in_flight


TicketEvent = Literal["admitted", "reissued", "finished", "trained", "dropped", "failed", "step", "continued"]
TicketLog = Callable[[TicketEvent, Mapping[str, int | str]], None]
"""Gets each change of a ticket, in order, as `orchestrator/run/event_log.py` writes it."""


class SlotState(Enum):
    """What a held slot is doing, in this order. A group that is dropped frees its slot at once."""

    MAKING = "making"  # its task is made
    GENERATING = "generating"  # its answers are sampled and judged
    READY = "ready"  # its group waits for a step
    TRAINING = "training"  # its group is in the current step, and the engines do not serve the new weights yet


MISSING = (SlotState.MAKING, SlotState.GENERATING)
"""What a slot does whose group no step can take yet."""


@dataclass(slots=True, kw_only=True)
class Slot:
    """A place for one group, from its admission to the release of the step that trained it.

    A finished group waits in a slot that is still `GENERATING` if earlier groups decide whether it is dropped.
    """

    number: int
    draw: Draw
    admitted: WeightVersion
    state: SlotState = SlotState.MAKING
    ticket: Ticket | None = None  # from `GENERATING` on
    group: Group | None = None  # from `READY` on
    trained: int = 0  # the step that the learner made with it; 0 before

    @property
    def label(self) -> str:
        if self.ticket is None:
            return f"the making of task {self.draw.index} of {self.draw.env}"
        return f"#{self.number} {self.ticket.task.label}"


@dataclass(slots=True, kw_only=True)
class Dropped:
    """What was dropped since the last step: counts by reason, and the groups, whose rewards are measured all the same."""

    zero_advantage: int = 0
    failed: int = 0
    groups: list[Group] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    """Those of the groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How many slots were in each state, in the mean over the time since it was asked last; the rest were free."""

    slots: int
    held: dict[SlotState, float]

    @property
    def free(self) -> float:
        return self.slots - sum(self.held.values())


class HeldSlots:
    """The held slots in the order of admission, with counts by state, so that no change costs more with more slots."""

    def __init__(self, slots: Iterable[Slot] = ()) -> None:
        self._by_number: dict[int, Slot] = {}
        self._missing: dict[int, Slot] = {}  # those that no step can take yet, in the order of admission
        self._undecided: set[int] = set()  # of these, those that have a group
        self._due: Counter[int] = Counter()  # of these, how many were admitted at a version
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
        """Put the group of a slot into it, while it is not decided what becomes of it."""
        slot.group = group
        self._undecided.add(slot.number)

    def remove(self, slot: Slot) -> None:
        if slot.state in MISSING:
            self._found(slot)
        self.counts[slot.state] -= 1
        del self._by_number[slot.number]

    def in_state(self, state: SlotState) -> list[Slot]:
        return [slot for slot in self if slot.state is state] if self.counts[state] else []

    @property
    def missing(self) -> list[Slot]:
        """Those that are made, generated or undecided, in their order."""
        return list(self._missing.values())

    @property
    def any_undecided(self) -> bool:
        return bool(self._undecided)

    def missing_until(self, version: int) -> int:
        """Return how many of those that are missing were admitted at a version or before it."""
        return sum(slots for admitted, slots in self._due.items() if admitted <= version)

    def _found(self, slot: Slot) -> None:
        del self._missing[slot.number]
        self._undecided.discard(slot.number)
        self._due[slot.admitted.step] -= 1
        if not self._due[slot.admitted.step]:
            del self._due[slot.admitted.step]


class Meter:
    """Adds up how long how many slots were in each state."""

    def __init__(self, began: float | None = None) -> None:
        """Time is counted from `began` on, or from the first count."""
        self._seconds = dict.fromkeys(SlotState, 0.0)
        self._began = self._counted = began

    def count(self, held: Mapping[SlotState, int], *, now: float) -> None:
        """Add the time since the last count, in which so many slots were in each state."""
        if self._began is None or self._counted is None:
            self._began = self._counted = now
        for state, slots in held.items():
            self._seconds[state] += slots * (now - self._counted)
        self._counted = now

    def means(self) -> dict[SlotState, float]:
        passed = 0.0 if self._began is None or self._counted is None else self._counted - self._began
        return {state: seconds / passed if passed else 0.0 for state, seconds in self._seconds.items()}


Held = Literal["ready", "undecided", "dropped"]
"""Whether a finished group waits for a step, for the decision on earlier ones, or was dropped since the last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTicket:
    """A ticket that is neither trained nor dropped: its number, of which its seeds derive, and what it is for."""

    number: int
    draw: Draw
    admitted: int
    """The version that was served when it was issued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """A finished group that is still needed, and the draw by which its task is made again."""

    held: Held
    draw: Draw
    group: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferState:
    """A buffer between two steps. `zero_advantage` and `failed` count what was dropped since the last step."""

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
    tokens = sum(answer.sampled_tokens for answer in (*answers, *failed))
    return {"answers": len(answers), "failed": len(failed), "tokens": tokens}


class Buffer:
    """Slots of groups between admission and release. All methods belong to one event loop."""

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
        has_advantage: Callable[[Group], bool] = lambda group: differ(group.rewards_G),
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
        self._again: deque[Slot] = deque()  # of a checkpoint, in their slots already: to be handed out once more
        self._later: deque[HeldTicket] = deque()  # of a checkpoint, for which there is no slot yet
        self._next = next_ticket
        self._totals = Totals()  # `in_flight` is counted when they are asked for
        self._event_log = event_log
        self._changed = asyncio.Condition()
        self._put_at = 0.0
        self._clock, self._meter = clock, Meter()
        self.dropped = Dropped()

    @property
    def slots(self) -> dict[int, tuple[str, SlotState]]:
        """The slots that are held, by their tickets' numbers: environment and state."""
        return {slot.number: (slot.draw.env, slot.state) for slot in self._slots}

    @property
    def unfinished(self) -> set[int]:
        """The tickets that hold a slot and have no group yet."""
        return {slot.number for slot in self._slots if slot.group is None}

    async def admit(self, mixture: Mixture, version: "VersionCell") -> Ticket:
        """Wait for a free slot, and return the right to start the next group; those of a checkpoint come first.

        Its task is made in a thread: some take minutes.
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
        """Return the slot that is handed out next: of a checkpoint, or for a new draw."""
        if self._again:
            slot = self._again.popleft()
            self._event_log("reissued", {"ticket": slot.number, "why": "restored"})
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
            self._event_log("admitted", admitted)  # the last, as it may fail: no task is lost then
        return slot

    async def put(self, group: Group) -> None:
        """Take a finished group in. One without signal or without enough answers frees its slot.

        From `max_replaced_groups` a step on, groups without signal are kept, so that a step always comes to an end. At lag 0
        the first of them by ticket are dropped, so that it does not matter who finishes first; with lag no slot waits for that.
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
        """Drop or keep the groups without signal as far as it is certain whether earlier ones leave them to be dropped."""
        if not self._slots.any_undecided:
            return
        earlier = 0  # of which it is not certain yet
        for slot in self._slots.missing:
            if slot.group is not None and self.dropped.zero_advantage + earlier < self._max_replaced_groups:
                self._drop(slot, slot.group)
            elif slot.group is not None and self.dropped.zero_advantage >= self._max_replaced_groups:
                self._slots.enter(slot, SlotState.READY)
            else:
                earlier += self.max_lag == 0

    async def take(self, version: WeightVersion) -> list[Group]:
        """Wait until a step can be made, and return its groups: the oldest that are ready, in their order."""
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
        """Let the groups of a step that the learner did not begin wait again."""
        self._measure()
        for slot in self._taken():
            self._slots.enter(slot, SlotState.READY)

    async def trained(self, step: int) -> Dropped:
        """Note that the learner made its step with what was taken. Return what was dropped since the step before."""
        async with self._changed:
            self._measure()
            for slot in self._taken():
                slot.trained = step
                self._totals = replace(self._totals, trained=self._totals.trained + 1)
                self._event_log("trained", {"ticket": slot.number, "step": step})
            self._event_log("step", {"step": step} | asdict(self.totals()))
            dropped, self.dropped = self.dropped, Dropped()
            self._decide()
            self._changed.notify_all()
            return dropped

    async def release(self, step: int) -> None:
        """Free the slots of a step: the engines serve its weights."""
        async with self._changed:
            self._measure()
            self._slots = HeldSlots(slot for slot in self._slots if slot.trained != step)
            self._changed.notify_all()

    def totals(self) -> Totals:
        in_flight = sum(not slot.trained for slot in self._slots) + len(self._later)
        return replace(self._totals, in_flight=in_flight)

    def occupancy(self) -> Occupancy:
        """Return how the slots were used since this was asked last."""
        self._measure()
        means, self._meter = self._meter.means(), Meter(self._clock())
        return Occupancy(slots=self.capacity, held=means)

    def _measure(self) -> None:
        self._meter.count(self._slots.counts, now=self._clock())

    def _taken(self) -> list[Slot]:
        """Return the slots of the step that the learner was given, and has not made yet."""
        return [slot for slot in self._slots.in_state(SlotState.TRAINING) if not slot.trained]

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
        """Free the slot of a group that is not trained on, which is measured with the step."""
        self._slots.remove(slot)
        self.dropped.groups.append(group)
        self.dropped.draws.append(slot.draw)

    def _step_is_ready(self, version: WeightVersion) -> bool:
        """Return whether enough groups are ready, and none that can't wait for a later step is missing.

        A group is due `max_lag` versions after its admission. Of those that are due within so many further steps, no more
        may be missing now than those steps can train.
        """
        if self._slots.counts[SlotState.READY] < self._per_step:
            return False
        now = version.step - self.max_lag
        return all(
            self._slots.missing_until(now + further) <= further * self._per_step for further in range(self.max_lag)
        )

    def last_progress(self) -> float:
        """Return when a group was finished last, on the monotonic clock."""
        return self._put_at

    def waiting_for(self) -> str:
        """Return a line for people on the groups that a stuck `take` waits for."""
        missing = self._slots.missing
        shown = ", ".join(slot.label for slot in missing[:3])
        return f"{len(missing)} groups that are still generated ({shown})"

    def state(self) -> BufferState:
        """Return the state for a checkpoint: every undecided ticket, and the finished groups."""
        tickets, groups, dropped = [], [], self.dropped
        for slot in (slot for slot in self._slots if not slot.trained):
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
        """Continue from a checkpoint that was made at version `was`, whose weights are served as version `now`.

        Tickets keep their numbers; those of environments that are not among `envs` any more are dropped. Return the tickets
        that go on where they were: the others are begun anew, as they would come too late.
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
        self._again = deque(slot for slot in slots if slot.group is None)
        self._decide()
        return resumed

    def _placed(
        self, tickets: list[HeldTicket], finished: dict[int, HeldGroup], *, was: WeightVersion, now: WeightVersion
    ) -> tuple[list[Slot], set[int]]:
        """Return the slots of a checkpoint's tickets, in which nothing comes too late, and the tickets that continue.

        A ticket that was so many versions behind at version `was` is so many behind `now`. As many are trained in a step as it
        has groups, so the one at place n waits n // `groups_per_step` steps. If settings have changed and one can't wait as
        long, it is begun anew, and so are all after it: a step takes the first by number, which have to be due first.
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
    """The version that the engines serve now; `learnt` is that of the learner's weights, ahead of it during a push."""

    value: WeightVersion
    learnt: WeightVersion = field(init=False)

    def __post_init__(self) -> None:
        self.learnt = self.value

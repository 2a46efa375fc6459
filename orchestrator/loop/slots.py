"""The slots of a buffer: what each holds, and how they were used over time."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from temper.orchestrator.loop.mixture import Draw
from temper.rollout.trajectory import Group, Ticket, WeightVersion


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

    A group stands in a slot that is still `GENERATING` where earlier groups decide whether it is dropped.
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
        """What it is called in messages."""
        if self.ticket is None:
            return f"the making of task {self.draw.index} of {self.draw.env}"
        return f"#{self.number} {self.ticket.task.label}"


@dataclass(slots=True, kw_only=True)
class Dropped:
    """What was dropped since the last step: counts by reason, and the groups, whose rewards are measured all the same."""

    no_signal: int = 0
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
    """The slots that are held, in the order of admission, with what they do counted: a change costs the same however many there
    are. States change here alone.
    """

    def __init__(self, slots: Iterable[Slot] = ()) -> None:
        self._by_number: dict[int, Slot] = {}
        self._missing: dict[int, Slot] = {}  # those that no step can take yet, in the order of admission
        self._undecided: set[int] = set()  # of these, those that have a group
        self._due: Counter[int] = Counter()  # of these, how many were admitted at a version
        self.counts = dict.fromkeys(SlotState, 0)
        """How many slots are in each state."""
        for slot in slots:
            self.add(slot)

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._by_number.values())

    def __getitem__(self, number: int) -> Slot:
        return self._by_number[number]

    def add(self, slot: Slot) -> None:
        """Hold a slot, which comes after all others."""
        self._by_number[slot.number] = slot
        self.counts[slot.state] += 1
        if slot.state in MISSING:
            self._missing[slot.number] = slot
            self._due[slot.admitted.step] += 1
            if slot.group is not None:
                self._undecided.add(slot.number)

    def enter(self, slot: Slot, state: SlotState) -> None:
        """Let a slot do something else."""
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
        """Free a slot."""
        if slot.state in MISSING:
            self._found(slot)
        self.counts[slot.state] -= 1
        del self._by_number[slot.number]

    def in_state(self, state: SlotState) -> list[Slot]:
        """Return the slots in a state, in their order."""
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
        """Return the mean number of slots in each state up to the last count."""
        passed = 0.0 if self._began is None or self._counted is None else self._counted - self._began
        return {state: seconds / passed if passed else 0.0 for state, seconds in self._seconds.items()}

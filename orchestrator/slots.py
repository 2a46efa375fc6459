"""The slots of a buffer: what each holds, and how they were used over time."""

from dataclasses import dataclass, field
from enum import Enum

from orchestrator.mixture import Draw
from rollout.trajectory import Group, Ticket, WeightVersion


class SlotState(Enum):
    """What a held slot is doing, in this order. A group that is dropped frees its slot at once."""

    MAKING = "making"  # its task is made
    GENERATING = "generating"  # its answers are sampled and judged
    READY = "ready"  # its group waits for a step
    TRAINING = "training"  # its group is in the current step, and the engines do not serve the new weights yet


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


class Meter:
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

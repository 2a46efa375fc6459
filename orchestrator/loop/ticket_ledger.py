"""What a buffer tells of its tickets: the life of each, and sums that must balance."""

from dataclasses import dataclass

from temper.orchestrator.loop.mixture import Draw
from temper.rollout.trajectory import Group, Ticket, WeightVersion


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
    def balances(self) -> bool:
        """Whether every ticket that was issued is in exactly one place."""
        return self.issued == self.trained + self.dropped + self.failed + self.in_flight


class TicketLedger:
    """Is told each change of a ticket, in order; this one keeps nothing."""

    def admitted(self, number: int, draw: Draw, version: WeightVersion) -> None: ...

    def reissued(self, number: int, *, why: str) -> None: ...

    def finished(self, group: Group) -> None: ...

    def trained(self, ticket: Ticket, *, step: int) -> None: ...

    def dropped(self, number: int, *, why: str) -> None: ...

    def failed(self, group: Group) -> None: ...

    def step(self, step: int, totals: Totals) -> None: ...

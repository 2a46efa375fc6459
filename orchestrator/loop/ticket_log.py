"""The changes of tickets and their totals. It imports no heavy library, since `temper status` reads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts of the tickets of a stage by their result. `in_flight` have none yet."""

    issued: int = 0
    trained: int = 0
    dropped: int = 0
    failed: int = 0
    in_flight: int = 0

    @property
    def is_balanced(self) -> bool:
        """Whether every issued ticket is counted exactly once."""
        return self.issued == self.trained + self.dropped + self.failed + self.in_flight


TicketEvent = Literal["admitted", "reissued", "finished", "trained", "dropped", "failed", "step", "continued"]
TicketLog = Callable[[TicketEvent, Mapping[str, int | str]], None]
"""Receives each change of a ticket, in order (`orchestrator/run/event_log.py`)."""

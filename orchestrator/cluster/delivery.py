"""How the bytes of a push get from the learner's rank 0 to the engines, where no engine can read them in place."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from rollout.trajectory import WeightVersion
from rollout.weights.process_group import Seat

RankActor = Any


class Parcel:
    """The bytes of one push, which lie in the learner's rank 0. They travel from its host to the engines' hosts, once to
    each however many engines it has, and not through this process.
    """

    def __init__(self, rank: RankActor, *, version: WeightVersion) -> None:
        self._rank = rank
        self._version = version
        self._fetched: dict[bool, Any] = {}

    def fetch(self, *, whole: bool) -> Any:
        """A reference to the bytes: the changes alone where there are any, unless `whole`."""
        if whole not in self._fetched:
            self._fetched[whole] = self._rank.payload.remote(self._version.step, whole=whole)
        return self._fetched[whole]


class Meeting:
    """The group in which rank 0 broadcasts to the engines. It is opened at the first push and serves all later ones to the
    same engines.
    """

    def __init__(self, rank: RankActor, host: Callable[[RankActor], Awaitable[str]]) -> None:
        """`host` finds the address at which the engines reach the rank."""
        self._rank = rank
        self._host = host
        self._engines: list[Any] = []
        self._seats: list[Seat] = []

    async def seats(self, engines: Sequence[Any]) -> list[Seat]:
        """The places of these actors, in their order."""
        if self._engines != list(engines):
            size, host = len(engines) + 1, await self._host(self._rank)
            seat: Seat = await self._rank.meet.remote(host, size)
            self._seats = [replace(seat, rank=rank) for rank in range(1, size)]
            self._engines = list(engines)
        return self._seats


class Broadcast:
    """One push that goes to all engines at once."""

    def __init__(self, rank: RankActor, meeting: Meeting, *, version: WeightVersion) -> None:
        self._rank = rank
        self._version = version
        self.meeting = meeting

    def send(self) -> Any:
        """Let rank 0 send; a reference that is done when every engine has received."""
        return self._rank.broadcast.remote(self._version.step)

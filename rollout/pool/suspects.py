"""Groups in whose flight workers died: the task of one may be what kills them, wherever it is sampled."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic

from envs.core.pulse import WorkerDied
from rollout.pool.restarts import TOGETHER_S
from rollout.trajectory import Failure, FailureKind, Group, Stop, Ticket, Trajectory

ALONE_AFTER, GUILTY_AFTER = 2, 3
"""After so many deaths a group is sampled without other suspects, so that the next one tells which it was; and is failed."""


class Suspects:
    """Counts the deaths that met each group in flight."""

    def __init__(self, *, together_s: float = TOGETHER_S, clock: Callable[[], float] = monotonic) -> None:
        """Deaths within `together_s` seconds count as one: a machine that goes takes many along."""
        self._together_s = together_s
        self._clock = clock
        self._deaths: dict[int, list[float]] = {}
        self._alone = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, number: int) -> AsyncIterator[None]:
        """Keep other suspects waiting during the block where the group of a ticket is one itself."""
        async with AsyncExitStack() as alone:
            if self._is_suspect(number):
                await alone.enter_async_context(self._alone)
            if not self._is_suspect(number):  # any more
                await alone.aclose()
            yield

    def _is_suspect(self, number: int) -> bool:
        return len(self._deaths.get(number, ())) >= ALONE_AFTER

    def is_guilty(self, number: int) -> bool:
        """Count a death that met the group of a ticket; return whether it was the one that is too much. The others are free."""
        deaths, now = self._deaths.setdefault(number, []), self._clock()
        if not deaths or now - deaths[-1] >= self._together_s:
            deaths.append(now)
        guilty = len(deaths) >= GUILTY_AFTER
        if guilty:
            self._deaths.clear()
        return guilty

    def forget(self, number: int) -> None:
        """Forget a group that is finished."""
        self._deaths.pop(number, None)


def failed(ticket: Ticket, samples: int, death: WorkerDied) -> Group:
    """Return the group of a task that is given up, all of whose answers failed."""
    why = f"{ticket.task.label} was being sampled when {GUILTY_AFTER} rollout workers died; the last death: {death}"
    failure = Failure(kind=FailureKind.ENGINE, message=why)
    return Group(
        ticket=ticket,
        trajectories=(),
        failed=(Trajectory(task=ticket.task, turns=(), stop=Stop.FAILURE, failure=failure),) * samples,
    )

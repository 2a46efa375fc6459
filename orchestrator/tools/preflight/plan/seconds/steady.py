"""Sampling as a run at lag 1 or more has it: whenever a group is finished the next one begins."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from temper.envs.core.clock import loop_time
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.run.progress import Progress, SamplingCount, sampling_shown
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.trajectory import Group, Ticket, WeightVersion


class SteadySampling:
    """Groups of some tasks, in an order of their own. All methods belong to one event loop."""

    def __init__(self, pool: RolloutPool, mixture: Mixture, *, answers: int, first: int) -> None:
        """Tickets are numbered from `first`; a group has so many `answers`."""
        self._pool, self._mixture, self._answers, self._next = pool, mixture, answers, first
        self._finished: asyncio.Queue[Group] = asyncio.Queue()

    async def play(self) -> None:
        """Sample one group after another, for ever."""
        while True:
            task = self._mixture.task(self._mixture.draw())
            ticket = Ticket(number=self._next, task=task, admitted=WeightVersion(step=0))
            self._next += 1
            self._finished.put_nowait(await self._pool.run_group(ticket, self._answers))

    async def groups(self, count: int) -> list[Group]:
        """Return the next groups that are finished from now on, as soon as there are so many."""
        while not self._finished.empty():
            self._finished.get_nowait()
        found = list[Group]()
        counted = SamplingCount("sampling", asked=count * self._answers)
        async with sampling_shown(Progress(stream=sys.stderr), counted):
            while len(found) < count:
                found.append(await self._finished.get())
                counted.add(found[-1])
        return found

    async def rate_until(self, done: Awaitable[object]) -> float:
        """Return the tokens that all engines together sample in a second, from now until something is done."""
        await self._pool.engine_stats()
        began = loop_time()
        await done
        stats = await self._pool.engine_stats()
        return stats.sampled_tokens / (loop_time() - began)


@asynccontextmanager
async def steady_sampling(
    pool: RolloutPool, mixture: Mixture, *, groups: int, answers: int, first: int
) -> AsyncIterator[SteadySampling]:
    """Have so many groups in flight within the block; what is in flight at its end is given up.

    Raise what a group failed with.
    """
    sampling = SteadySampling(pool, mixture, answers=answers, first=first)
    try:
        async with asyncio.TaskGroup() as players:
            playing = [players.create_task(sampling.play()) for _ in range(groups)]
            yield sampling
            for one in playing:
                one.cancel()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors

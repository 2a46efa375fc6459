"""The rollout workers, seen as one: which of them samples a group, what is tried again, and what all of them confirm."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rollout.engines.protocol import EngineStats
from rollout.episodes.begun import BegunGroup
from rollout.episodes.partials import newest
from rollout.trajectory import Group, Ticket, WeightVersion
from rollout.weights.delivery import Push, WeightTaker


class PoolWorker(WeightTaker, Protocol):
    """A rollout worker as the pool sees it, wherever it runs. A call that is cancelled ends its work there too."""

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, begun: BegunGroup | None) -> Group: ...

    async def partials(self) -> list[BegunGroup]: ...

    async def sample_bare(self, prompts: list[tuple[int, ...]], max_tokens: int) -> int: ...

    async def isolation(self) -> str: ...

    async def engine_stats(self) -> EngineStats: ...

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion: ...

    async def close(self) -> None: ...


class RolloutPool:
    """Sends each group to the worker with the fewest in flight."""

    def __init__(self, workers: Sequence[PoolWorker], *, retries: int) -> None:
        """`retries` is how often failed episodes are tried again."""
        self._workers = workers
        self._retries = retries
        self._in_flight = [0] * len(workers)
        self._begun: dict[int, BegunGroup] = {}

    async def run_group(self, ticket: Ticket, samples: int, begun: BegunGroup | None = None) -> Group:
        """Return a group of answers from the least busy worker; try failed ones again, elsewhere where that is possible.

        `begun` is what there is of the group from workers that are gone: it goes on where it was.
        """
        begun = begun or BegunGroup(ticket=ticket, attempt=0)
        index: int | None = None
        try:
            while True:
                self._begun[ticket.number] = begun
                wanted = samples if begun.before is None else begun.before.worth_retrying
                index = self._least_busy([i for i in range(len(self._workers)) if i != index] or [0])
                group = await self._group_from(index, ticket, wanted, begun)
                if begun.before is not None:
                    group = begun.before.merged_with_retry(group)
                if begun.attempt >= self._retries or not group.worth_retrying:
                    return group
                begun = BegunGroup(ticket=ticket, attempt=begun.attempt + 1, before=group)
        finally:
            self._begun.pop(ticket.number, None)

    async def partials(self) -> list[BegunGroup]:
        """Return what there is of the groups in flight: by their workers, else what was known when they were given out."""
        return await newest(self._begun.values(), self._workers)

    def _least_busy(self, indices: Sequence[int]) -> int:
        return min(indices, key=lambda index: self._in_flight[index])

    async def _group_from(self, index: int, ticket: Ticket, samples: int, begun: BegunGroup) -> Group:
        self._in_flight[index] += 1
        try:
            return await self._workers[index].run_group(ticket, samples, begun.attempt, replace(begun, before=None))
        finally:
            self._in_flight[index] -= 1

    async def sample_bare(self, prompts: list[tuple[int, ...]], *, max_tokens: int) -> int:
        """Sample turns by the engines alone, for measurement; returns their tokens."""
        shares = [prompts[number :: len(self._workers)] for number in range(len(self._workers))]
        return sum(
            await asyncio.gather(
                *(worker.sample_bare(share, max_tokens) for worker, share in zip(self._workers, shares, strict=True))
            )
        )

    async def isolation(self) -> set[str]:
        """Return what the workers say about their sandboxes, each line once."""
        return set(await asyncio.gather(*(worker.isolation() for worker in self._workers)))

    async def engine_stats(self) -> EngineStats:
        """Return what the engines did since they were last asked."""
        return EngineStats.together(await asyncio.gather(*(worker.engine_stats() for worker in self._workers)))

    async def load_weights(self, push: Push) -> WeightVersion:
        """Deliver a push to every worker; returns the version that all of them confirm."""
        return all_equal(await push.delivery.deliver(push.manifest, self._workers))

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        """Let every worker read a model directory, whose weights count as `version`; returns what all of them confirm."""
        return all_equal(
            await asyncio.gather(*(worker.load_checkpoint(directory, version) for worker in self._workers))
        )

    async def close(self) -> None:
        """Stop the engines and the workers."""
        await asyncio.gather(*(worker.close() for worker in self._workers))


def all_equal(confirmed: Sequence[WeightVersion]) -> WeightVersion:
    """Return the version that all workers confirmed."""
    assert len(set(confirmed)) == 1, confirmed
    return confirmed[0]

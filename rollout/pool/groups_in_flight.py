"""What there is of the groups in flight, asked of the workers that sample them."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from temper.envs.core.pulse import WorkerDied
from temper.rollout.episodes.resume import BegunGroup
from temper.rollout.pool.pool_worker import PoolWorker

LOG = logging.getLogger(__name__)
ANSWER_S = 20.0
"""How long a worker may take to say what is in flight."""


async def newest(known: Iterable[BegunGroup], workers: Sequence[PoolWorker]) -> list[BegunGroup]:
    """Return the groups, each as its worker knows it; as it was `known` where no worker says anything of it.

    A worker that has died or does not answer in time is left out.
    """
    asked = [asyncio.ensure_future(_of(worker)) for worker in workers]
    answered, silent = await asyncio.wait(asked, timeout=ANSWER_S) if asked else (set(), set())
    for one in silent:
        one.cancel()
    if silent:
        LOG.warning("%d rollout workers do not say what is in flight: their episodes begin again", len(silent))
    there = {(one.ticket.number, one.attempt): one for worker in answered for one in worker.result()}
    return [replace(there.get((one.ticket.number, one.attempt), one), before=one.before) for one in list(known)]


async def _of(worker: PoolWorker) -> list[BegunGroup]:
    try:
        return await worker.groups_in_flight()
    except WorkerDied:  # its groups are given out again
        return []

"""How a push gets from the learner to the engines: offered by its rank 0, sent by whoever sends by its transport."""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from temper.envs.core.clock import loop_time
from temper.envs.core.errors import describe_error
from temper.envs.core.process import ProcessDied, WorkerDied
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.manifest import NoLongerHeld, WeightManifest, WholeWeightsNeeded
from temper.rollout.weights.process_group import ALONE_S, SLOWEST
from temper.rollout.weights.transports import Receivers, is_non_blocking

LOG = logging.getLogger(__name__)
NAMED_AFTER_S = 10.0
"""Seconds between two warnings that name the engines that a push waits for."""
LIMITED_BY = "; the limit is rollout.engine.push_timeout_s"
AFTER_SENDER_S = 15.0
"""Seconds that engines have, beyond those of a broadcast, to notice that the sender has failed."""
Offered = Awaitable[object]
"""An offer on its way, with which an engine gets at a push: nobody between the two ends looks into it, or waits for it."""


class LearnerEnd(Protocol):
    """The learner, wherever it runs."""

    async def host(self) -> str: ...

    def offer(self, version: int, *, whole: bool, receivers: Receivers) -> Offered:
        """Begin to offer the last push: its adapters alone if it has any, unless `whole`."""
        ...

    async def send(self, version: int) -> None: ...


class EngineEnd(Protocol):
    """A rollout worker, wherever it runs."""

    @property
    def name(self) -> str: ...

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        """Serve a push by its offer, as engine `number` of the audience; returns the version that the engine confirms."""
        ...


class Delivery:
    """Brings the pushes of one sender to its engines."""

    def __init__(self, sender: LearnerEnd, *, processes: int) -> None:
        """`processes` is how many each engine has."""
        self._sender = sender
        self._processes = processes
        self._engines: list[EngineEnd] = []
        self._receivers = Receivers(number=0, size=0, host="")

    async def deliver_push(
        self, manifest: WeightManifest, engines: Sequence[EngineEnd], *, limit_s: float, whole: bool = False
    ) -> list[WeightVersion | WorkerDied]:
        """Bring a push to all engines at once, whole to one that lacks the weights of adapters. Return the version of each.

        If a worker died meanwhile, its result is its death. The same holds for one that has not confirmed `limit_s`
        seconds after the sender did its part, or offered the whole weights that were asked for, and earlier if the sender
        failed (`_limit_s`). To those that live and have not got it the push is delivered once more, whole: it was damaged, or
        came by way of the one that died. A push that is no longer held is not repeated. One that fails
        again while others have it counts as dead, and is to be replaced. Raises an error that all repeat, and
        `ProcessDied` if the sender died. With `whole` nobody is given adapters alone.
        """
        found = await self._try_delivery(manifest, engines, limit_s=limit_s, whole=whole)
        again = [number for number, outcome in enumerate(found) if _failed(outcome)]
        if again:
            lacking = [engines[number] for number in again]
            repeated = await self._try_delivery(manifest, lacking, limit_s=limit_s, whole=True)
            for number, outcome in zip(again, repeated, strict=True):
                found[number] = outcome
        taken = any(isinstance(outcome, WeightVersion) for outcome in found)
        confirmed: list[WeightVersion | WorkerDied] = []
        for outcome in found:
            if isinstance(outcome, WeightVersion | WorkerDied):
                confirmed.append(outcome)
            elif taken and isinstance(outcome, Exception) and not isinstance(outcome, ProcessDied):
                why = f"did not take weight version {manifest.version}, which others took: {describe_error(outcome)}"
                confirmed.append(WorkerDied(why))
            else:
                raise outcome
        return confirmed

    async def _try_delivery(
        self, manifest: WeightManifest, engines: Sequence[EngineEnd], *, limit_s: float, whole: bool
    ) -> list[WeightVersion | BaseException]:
        """Return what each engine confirms, or what went wrong with it. Raises what went wrong at the sender's end alone."""
        receivers = await self._describe_receivers(engines)
        offers: dict[bool, Offered] = {}

        def offer(*, whole: bool) -> Offered:
            """Return the offer, the same to all: it travels to each host once."""
            if whole not in offers:
                offers[whole] = self._sender.offer(manifest.version, whole=whole, receivers=receivers)
            return offers[whole]

        async def load(number: int, engine: EngineEnd) -> WeightVersion:
            if not whole:
                try:
                    return await engine.load_weights(manifest, offer(whole=False), number)
                except WholeWeightsNeeded:
                    pass  # it is given them instead
            return await engine.load_weights(manifest.whole(), offer(whole=True), number)

        offer(whole=whole)  # the sender does one thing at a time, and sending may wait for engines that have the offer
        loads = [asyncio.ensure_future(load(number, engine)) for number, engine in enumerate(engines)]
        sending, began = asyncio.ensure_future(self._sender.send(manifest.version)), loop_time()
        waited = [("the learner", sending), *((engine.name, one) for engine, one in zip(engines, loads, strict=True))]
        naming = asyncio.create_task(name_waited(f"weight version {manifest.version}", waited))
        try:
            (sent,) = await asyncio.gather(sending, return_exceptions=True)
            if sent is not None:
                limit_s = min(limit_s, _limit_s(manifest, spent_s=loop_time() - began))
            await asyncio.wait(loads, timeout=limit_s)  # the offer is there: from now on an engine's delay is its own
            if len(offers) > 1 and not all(one.done() for one in loads):  # whole weights were asked for meanwhile
                # The sender may be at its next step, and offers them after it. It has when it answers this.
                await asyncio.gather(self._sender.send(manifest.version), return_exceptions=True)
                await asyncio.wait(loads, timeout=limit_s)
            late = f"did not take weight version {manifest.version} within {limit_s:.0f} s"
            late += f" after the sender failed: {describe_error(sent)}" if isinstance(sent, Exception) else LIMITED_BY
            found = [one.exception() or one.result() if one.done() else WorkerDied(late) for one in loads]
        finally:
            for one in (naming, *loads):
                one.cancel()
        fine = not any(isinstance(outcome, BaseException) for outcome in found)
        if sent is not None or not fine:
            self._engines = []  # whoever met for this push does not meet again
        if sent is not None and (fine or isinstance(sent, ProcessDied)):
            raise sent
        return found

    async def _describe_receivers(self, engines: Sequence[EngineEnd]) -> Receivers:
        """Return the audience that these are: another one where they are not those of the push before."""
        if self._engines != list(engines):
            host = await self._sender.host()
            self._receivers = Receivers(
                number=self._receivers.number + 1, size=len(engines) * self._processes, host=host
            )
            self._engines = list(engines)
        return self._receivers


def _failed(outcome: WeightVersion | BaseException) -> bool:
    return not isinstance(outcome, WeightVersion | WorkerDied | NoLongerHeld)


def _limit_s(manifest: WeightManifest, *, spent_s: float) -> float:
    """Return how many seconds engines have after the sender failed: in a broadcast each waits for the others by itself."""
    return max(AFTER_SENDER_S, ALONE_S + manifest.whole_bytes / SLOWEST + AFTER_SENDER_S - spent_s)


async def name_waited(what: str, waited: Sequence[tuple[str, asyncio.Future[Any]]]) -> None:
    """Warn every `NAMED_AFTER_S` seconds, until cancelled, that `what` waits for those that are not done, by their names."""
    while True:
        await asyncio.sleep(NAMED_AFTER_S)
        LOG.warning("%s waits for %s", what, ", ".join(name for name, one in waited if not one.done()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What was published, and how it is delivered."""

    manifest: WeightManifest
    delivery: Delivery

    @property
    def non_blocking(self) -> bool:
        """Whether the learner may train while engines load it."""
        return is_non_blocking(self.manifest.transport)

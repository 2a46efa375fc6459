"""Delivery of weights to the engines: a push to all, and the current weights to a new one before it serves.

The learner's rank 0 offers a push, and the transport's senders send it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
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
"""Seconds between two warnings that name the engines for which a push waits."""
LIMITED_BY = "; raise rollout.engine.push_timeout_s if it needs longer"
AFTER_SENDER_S = 15.0
"""Extra seconds for engines to detect that the sender failed."""
Offered = Awaitable[object]
"""A pending offer of a push for an engine. Code between the two ends neither reads nor awaits it."""


class LearnerEnd(Protocol):
    """The learner, in any process."""

    async def host(self) -> str: ...

    def offer(self, version: int, *, with_base: bool, receivers: Receivers) -> Offered:
        """Begin to offer the last push. Without `with_base` it may be adapters alone."""
        ...

    async def send(self, version: int) -> None: ...


class EngineEnd(Protocol):
    """A rollout worker, in any process."""

    @property
    def name(self) -> str: ...

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        """Load a push by its offer, as engine `number` of the receivers. Return the version that the engine confirms."""
        ...


class WorkerEnd(EngineEnd, Protocol):
    """A worker of the pool, which also reads model directories."""

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        """Load a model directory, whose weights count as `version`. Return the version that the engine confirms."""
        ...


class Delivery:
    """Delivers the pushes of one sender to its engines."""

    def __init__(self, sender: LearnerEnd, *, processes: int) -> None:
        """`processes` is the number of processes per engine."""
        self._sender = sender
        self._processes = processes
        self._engines: list[EngineEnd] = []
        self._receivers = Receivers(number=0, size=0, host="")

    async def deliver_push(
        self, manifest: WeightManifest, engines: Sequence[EngineEnd], *, limit_s: float, with_base: bool = False
    ) -> list[WeightVersion | WorkerDied]:
        """Deliver a push to all engines at once. Return each engine's version or failure.

        An engine fails if it does not confirm within `limit_s` seconds after the sender finished (or offered the whole
        weights), or within `_limit_s` after the sender failed. Living engines without the push get it once more, with the
        base. A push that the learner no longer holds is not repeated. An engine that fails twice counts as dead if others
        succeeded. Raises an error that all engines repeat, and `ProcessDied` if the sender died. With `with_base` no engine
        gets adapters alone.
        """
        found = await self._try_delivery(manifest, engines, limit_s=limit_s, with_base=with_base)
        again = [number for number, result in enumerate(found) if _is_retried(result)]
        if again:
            lacking = [engines[number] for number in again]
            repeated = await self._try_delivery(manifest, lacking, limit_s=limit_s, with_base=True)
            for number, result in zip(again, repeated, strict=True):
                found[number] = result
        taken = any(isinstance(result, WeightVersion) for result in found)
        confirmed: list[WeightVersion | WorkerDied] = []
        for result in found:
            if isinstance(result, WeightVersion | WorkerDied):
                confirmed.append(result)
            elif taken and isinstance(result, Exception) and not isinstance(result, ProcessDied):
                why = f"did not take weight version {manifest.version}, which others took: {describe_error(result)}"
                confirmed.append(WorkerDied(why))
            else:
                raise result
        return confirmed

    async def _try_delivery(
        self, manifest: WeightManifest, engines: Sequence[EngineEnd], *, limit_s: float, with_base: bool
    ) -> list[WeightVersion | BaseException]:
        """Return each engine's version or error. Raises the sender's error if it is the only one."""
        receivers = await self._describe_receivers(engines)
        offers: dict[bool, Offered] = {}

        def offer(*, with_base: bool) -> Offered:
            """Return the offer. All engines share it, so it is sent to each host once."""
            if with_base not in offers:
                offers[with_base] = self._sender.offer(manifest.version, with_base=with_base, receivers=receivers)
            return offers[with_base]

        async def load(number: int, engine: EngineEnd) -> WeightVersion:
            if not with_base:
                try:
                    return await engine.load_weights(manifest, offer(with_base=False), number)
                except WholeWeightsNeeded:
                    pass  # send the whole weights instead
            return await engine.load_weights(manifest.with_base(), offer(with_base=True), number)

        offer(
            with_base=with_base
        )  # the sender works sequentially, and sending may wait for engines that have the offer
        loads = [asyncio.ensure_future(load(number, engine)) for number, engine in enumerate(engines)]
        sending, began = asyncio.ensure_future(self._sender.send(manifest.version)), loop_time()
        waited = [("the learner", sending), *((engine.name, one) for engine, one in zip(engines, loads, strict=True))]
        naming = asyncio.create_task(_name_pending(f"weight version {manifest.version}", waited))
        try:
            (sent,) = await asyncio.gather(sending, return_exceptions=True)
            if sent is not None:
                limit_s = min(limit_s, _limit_s(manifest, spent_s=loop_time() - began))
            await asyncio.wait(loads, timeout=limit_s)  # the offer exists: from now on a delay is the engine's
            if len(offers) > 1 and not all(one.done() for one in loads):  # whole weights were requested meanwhile
                # The sender may be at its next step, and makes the offer after that. It has, when it answers this.
                await asyncio.gather(self._sender.send(manifest.version), return_exceptions=True)
                await asyncio.wait(loads, timeout=limit_s)
            late = f"did not take weight version {manifest.version} within {limit_s:.0f} s"
            late += f" after the sender failed: {describe_error(sent)}" if isinstance(sent, Exception) else LIMITED_BY
            found = [one.exception() or one.result() if one.done() else WorkerDied(late) for one in loads]
        finally:
            for one in (naming, *loads):
                one.cancel()
        fine = not any(isinstance(result, BaseException) for result in found)
        if sent is not None or not fine:
            self._engines = []  # their process groups are unusable now
        if sent is not None and (fine or isinstance(sent, ProcessDied)):
            raise sent
        return found

    async def _describe_receivers(self, engines: Sequence[EngineEnd]) -> Receivers:
        """Return these engines' description, with a new number if they are not those of the last push."""
        if self._engines != list(engines):
            host = await self._sender.host()
            self._receivers = Receivers(
                number=self._receivers.number + 1, size=len(engines) * self._processes, host=host
            )
            self._engines = list(engines)
        return self._receivers


def _is_retried(result: WeightVersion | BaseException) -> bool:
    return not isinstance(result, WeightVersion | WorkerDied | NoLongerHeld)


def _limit_s(manifest: WeightManifest, *, spent_s: float) -> float:
    """Return the engines' remaining seconds after the sender failed: in a broadcast each waits for the others."""
    return max(AFTER_SENDER_S, ALONE_S + manifest.bytes_with_base / SLOWEST + AFTER_SENDER_S - spent_s)


async def _name_pending(what: str, waited: Sequence[tuple[str, asyncio.Future[Any]]]) -> None:
    """Warn every `NAMED_AFTER_S` seconds, until cancelled, with the names of pending tasks."""
    while True:
        await asyncio.sleep(NAMED_AFTER_S)
        LOG.warning("%s waits for %s", what, ", ".join(name for name, one in waited if not one.done()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """A published version, and its delivery."""

    manifest: WeightManifest
    delivery: Delivery

    @property
    def non_blocking(self) -> bool:
        """Whether the learner may train while engines load it."""
        return is_non_blocking(self.manifest.transport)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Served:
    """Weights of all workers: from a model directory, or from a push."""

    version: WeightVersion
    model: Path | None = None
    push: Push | None = None

    @property
    def non_blocking(self) -> bool:
        """Whether a worker may load them later than the others."""
        return self.push is None or self.push.non_blocking


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningWorker:
    """A worker that loads weights separately. A later load for all workers waits for that."""

    worker: WorkerEnd
    joining: asyncio.Task[None]

    @property
    def name(self) -> str:
        return self.worker.name

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        await asyncio.wait({self.joining})
        return await self.worker.load_weights(manifest, offer, number)

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        await asyncio.wait({self.joining})
        return await self.worker.load_checkpoint(directory, version)


class ServedWeights:
    """The current weights of all workers. Changing them, or starting a separate load, needs the `lock`. A separate load
    then continues without it.
    """

    def __init__(
        self,
        model: Path,
        version: WeightVersion,
        *,
        push_s: Callable[[int], float],
        newest: Callable[[], Path] | None = None,
    ) -> None:
        """Begin with a model directory. `newest` returns a directory to start from after a push.

        `push_s` returns the seconds that an engine may take for a push of so many bytes.
        """
        self.now = Served(version=version, model=model)
        self.lock = asyncio.Lock()
        self._newest = newest or (lambda: model)
        self._push_s = push_s

    def start_on(self) -> Served:
        """Return the files from which a new worker's engine starts. They may be older than the current weights."""
        return Served(version=self.now.version, model=self.now.model or self._newest())

    async def deliver_push(
        self, push: Push, receivers: Sequence[EngineEnd], *, with_base: bool = False
    ) -> list[WeightVersion | WorkerDied]:
        limit_s = self._push_s(push.manifest.bytes_with_base)
        return await push.delivery.deliver_push(push.manifest, receivers, limit_s=limit_s, with_base=with_base)

    async def give(self, worker: WorkerEnd, now: Served, *, started: Served, read_s: float) -> None:
        """Bring a worker from its weights `started` to the weights `now`.

        Raises `WorkerDied` if it died or took too long, for a directory `read_s` seconds. Raises `ProcessDied` if the
        sender of the push died. Raises other errors of the delivery: the sender may already prepare the next version.
        """
        if now.push is not None:
            (result,) = await self.deliver_push(now.push, [worker], with_base=True)
            if isinstance(result, WorkerDied):
                raise result
        elif (now.model, now.version) == (started.model, started.version):
            result = started.version  # the worker confirmed it at its start
        else:
            assert now.model is not None
            try:
                async with asyncio.timeout(read_s):
                    result = await worker.load_checkpoint(now.model, now.version)
            except TimeoutError:
                raise WorkerDied(f"{worker.name} did not read {now.model} within {read_s:.0f} s") from None
        if result != now.version:
            raise WorkerDied(f"{worker.name} confirms version {result.step}, but the others serve {now.version.step}")

"""The current weights of all engines. A new worker gets them before it serves."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from temper.envs.core.process import WorkerDied
from temper.rollout.pool.worker_handle import WorkerHandle
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.delivery import EngineEnd, Offered, Push
from temper.rollout.weights.manifest import WeightManifest


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

    worker: WorkerHandle
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

    async def give(self, worker: WorkerHandle, now: Served, *, started: Served, read_s: float) -> None:
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

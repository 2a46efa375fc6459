"""The weights that the engines serve, so that a worker that comes later is given them before it serves."""

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
    """Weights that were given to all: those of a model directory, or of a push; one of the two is there."""

    version: WeightVersion
    model: Path | None = None
    push: Push | None = None

    @property
    def non_blocking(self) -> bool:
        """Whether a worker may take them later than others do."""
        return self.push is None or self.push.non_blocking


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningWorker:
    """A worker that is being given weights by itself. It takes the weights of all others after these."""

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
    """The weights that were given to all workers last. To give all of them others, or to begin to give these to a newcomer,
    needs the `lock`. A newcomer does not hold it while its bytes travel.
    """

    def __init__(
        self,
        model: Path,
        version: WeightVersion,
        *,
        push_s: Callable[[int], float],
        newest: Callable[[], Path] | None = None,
    ) -> None:
        """Begin with a model directory. `newest` is a directory to start on if `model` may be gone by then.

        `push_s` is how many seconds an engine may take for a push of so many bytes.
        """
        self.now = Served(version=version, model=model)
        self.lock = asyncio.Lock()
        self._newest = newest or (lambda: model)
        self._push_s = push_s

    def start_on(self) -> Served:
        """Return what a newcomer's engine starts on: files, whose weights may not be those that are served."""
        return Served(version=self.now.version, model=self.now.model or self._newest())

    async def deliver_push(
        self, push: Push, receivers: Sequence[EngineEnd], *, whole: bool = False
    ) -> list[WeightVersion | WorkerDied]:
        limit_s = self._push_s(push.manifest.whole_bytes)
        return await push.delivery.deliver_push(push.manifest, receivers, limit_s=limit_s, whole=whole)

    async def give(self, worker: WorkerHandle, now: Served, *, started: Served, read_s: float) -> None:
        """Give a worker that started on the weights `started` those that all serve `now`.

        Raises `WorkerDied` if it died or did not take them in time, which is `read_s` seconds for a directory. Raises
        `ProcessDied` if the sender of the push has died, and any other error of the delivery: the sender may be about to
        publish the next version.
        """
        if now.push is not None:
            (outcome,) = await self.deliver_push(now.push, [worker], whole=True)
            if isinstance(outcome, WorkerDied):
                raise outcome
        elif (now.model, now.version) == (started.model, started.version):
            outcome = started.version  # the worker confirmed it when it started
        else:
            assert now.model is not None
            try:
                async with asyncio.timeout(read_s):
                    outcome = await worker.load_checkpoint(now.model, now.version)
            except TimeoutError:
                raise WorkerDied(f"{worker.name} did not read {now.model} within {read_s:.0f} s") from None
        if outcome != now.version:
            raise WorkerDied(f"{worker.name} confirms version {outcome.step}, the others serve {now.version.step}")

"""Which weights the engines serve, so that a worker that comes later is brought to them before it serves."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from envs.core.pulse import WorkerDied
from rollout.pool.pool_worker import PoolWorker
from rollout.trajectory import WeightVersion
from rollout.weights.delivery import Push


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Served:
    """Weights that were given to all: those of a model directory, or of a push; one of the two is there."""

    version: WeightVersion
    model: Path | None = None
    push: Push | None = None


class ServedWeights:
    """What was given to all workers last. Whoever gives them weights, or a newcomer these, holds the `lock` meanwhile."""

    def __init__(self, model: Path, version: WeightVersion, *, newest: Callable[[], Path] | None = None) -> None:
        """Begin with a model directory; `newest` is a directory to start on where `model` may be gone by then."""
        self.now = Served(version=version, model=model)
        self.lock = asyncio.Lock()
        self._newest = newest or (lambda: model)

    def start_on(self) -> Served:
        """Return what a newcomer's engine starts on: files, whose weights may not be those that are served."""
        return Served(version=self.now.version, model=self.now.model or self._newest())

    async def bring(self, worker: PoolWorker, started: Served, *, lacks: Callable[[], bool], read_s: float) -> None:
        """Let a worker that started on these weights serve what the others do, if it still `lacks` that at its turn.

        Raises `WorkerDied` where it died, or did not read a directory within `read_s` seconds, `ProcessDied` where the
        sender of the push has died, and whatever went wrong with the delivery: the sender may be about to publish the
        next version.
        """
        async with self.lock:
            if not lacks():  # it was given them with the others while it waited
                return
            now = self.now
            if now.push is not None:
                (outcome,) = await now.push.delivery.deliver(now.push.manifest, [worker], whole=True)
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

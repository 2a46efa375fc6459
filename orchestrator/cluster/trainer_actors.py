"""The learner's ranks as actors of Ray, and the group of them that a run starts."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np
import ray

from learner.batches.micro_batches import BatchShare
from learner.config import LearnerConfig, OptimConfig
from learner.losses.config import LossConfig
from learner.trainer_group import TrainerGroup
from learner.worker import TrainerWorker
from orchestrator.cluster.actors import await_actor, close_actor, ended_on_failure, gpu_share, host_of
from orchestrator.cluster.this_machine import LOOPBACK, free_port
from rollout.weights.manifest import WeightManifest
from rollout.weights.process_group import Seat


async def start_trainer_group(config: LearnerConfig, *, actors: int) -> TrainerGroup:
    """Start one actor per rank, and wait until they have joined each other on loopback.

    `actors`: see `start_rollout_pool`.
    """
    share = await gpu_share(actors, wanted=config.ranks)
    actor = ray.remote(TrainerWorker).options(num_cpus=0, num_gpus=share, max_restarts=0)
    port = free_port()
    started = [actor.remote(rank, config.ranks, LOOPBACK, port, config) for rank in range(config.ranks)]
    ranks = [TrainerActor(one, number=number) for number, one in enumerate(started)]
    with ended_on_failure(started):
        await asyncio.gather(*(rank.ready() for rank in ranks))
    return TrainerGroup(ranks, broadcast=config.carrier == "broadcast")


class TrainerActor:
    """One actor, as `learner/trainer_group.py` sees a rank."""

    def __init__(self, actor: Any, *, number: int) -> None:
        self._actor = actor
        self._name = f"the learner's rank {number}"

    async def ready(self) -> None:
        """Wait until the rank has joined the others."""
        await self._answer(self._actor.__ray_ready__.remote())

    async def load(self, model_dir: str, *, optim: OptimConfig, total_steps: int, teacher_dir: str | None) -> None:
        """Load a model."""
        call = self._actor.load.remote(model_dir, optim=optim, total_steps=total_steps, teacher_dir=teacher_dir)
        await self._answer(call)

    async def load_reference(self) -> None:
        """Load the weights that the loss compares with."""
        await self._answer(self._actor.load_reference.remote())

    async def use_threads(self, threads: int) -> None:
        """Compute with this many CPU threads."""
        await self._answer(self._actor.use_threads.remote(threads))

    async def train(self, shares: Sequence[BatchShare], *, loss: LossConfig, epochs: int) -> dict[str, float]:
        """Take part in a step; returns its metrics."""
        metrics: dict[str, float] = await self._answer(self._actor.train.remote(shares, loss=loss, epochs=epochs))
        return metrics

    async def publish(self, version: int) -> WeightManifest | None:
        """Take part in the gathering of the weights; rank 0 returns what was published."""
        manifest: WeightManifest | None = await self._answer(self._actor.publish.remote(version))
        return manifest

    def payload(self, version: int, *, whole: bool) -> Awaitable[np.ndarray]:
        """Return Ray's reference to the bytes of the last push, which actors can be given before the bytes are there."""
        reference: Awaitable[np.ndarray] = self._actor.payload.remote(version, whole=whole)
        return reference

    async def host(self) -> str:
        """Return the address at which the engines reach the rank."""
        return await host_of(self._actor)

    async def meet(self, host: str, size: int) -> Seat:
        """Open the group of rank 0 and the engines."""
        seat: Seat = await self._answer(self._actor.meet.remote(host, size))
        return seat

    async def broadcast(self, version: int) -> None:
        """Send the last push to the engines of the group."""
        await self._answer(self._actor.broadcast.remote(version))

    async def checkpoint_bytes(self) -> int:
        """Return what `save` writes, at the most."""
        needed: int = await self._answer(self._actor.checkpoint_bytes.remote())
        return needed

    async def save(self, directory: str) -> None:
        """Write model and optimiser."""
        await self._answer(self._actor.save.remote(directory))

    async def restore(self, directory: str) -> None:
        """Read what `save` wrote."""
        await self._answer(self._actor.restore.remote(directory))

    async def close(self) -> None:
        """Free what the rank holds, then end the actor."""
        await close_actor(self._actor)

    async def _answer(self, call: Awaitable[Any]) -> Any:
        return await await_actor(call, self._name)

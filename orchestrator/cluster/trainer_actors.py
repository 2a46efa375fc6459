"""The learner's ranks as actors of Ray, and the group of them that a run starts."""

import os
from collections.abc import Awaitable, Sequence
from typing import Any

import ray

from temper.envs.core.member import Holding, LearnerDied, Place, Pulse
from temper.learner.batches.micro_batches import BatchShare
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.token_records import TokenRecord
from temper.learner.trainer_group import Shares, TrainerGroup
from temper.orchestrator.cluster.actors import at_node, await_actor, close_actor, ended_on_failure, host_of, placed
from temper.orchestrator.cluster.bundles import Bundles
from temper.orchestrator.cluster.placement import Node
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_port
from temper.orchestrator.loop.deadline import in_thread
from temper.rollout.weights.delivery import Offered
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.transports import CUDA_IPC, Audience

HEALTH = "health"
"""The group of calls with a thread of its own: a rank answers in it while its other thread computes."""
FILES = "files"
"""Likewise, for calls that write files."""
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables that configure torch's memory of a GPU, the newer name first."""


async def start_trainer_group(config: LearnerConfig, *, bundles: Bundles, engine_processes: int) -> TrainerGroup:
    """Start one actor per rank in its bundle, and wait until they have joined each other at the first one's address.

    `engine_processes` is how many an engine has. Where a machine was lost they wait until all bundles have one again.
    """
    from temper.learner.worker import TrainerWorker  # takes seconds, and most commands start no ranks

    placed_ranks = await bundles.ranks()
    host, port = await _rendezvous([node for _, node in placed_ranks])
    actor = ray.remote(max_restarts=0, concurrency_groups={HEALTH: 1, FILES: 1})(TrainerWorker)
    allocator = allocator_options(config, on_gpus=bundles.gpus > 0)
    started = [
        actor.options(**bundle.options(), **allocator).remote(rank, config.ranks, host, port, config)
        for rank, (bundle, _) in enumerate(placed_ranks)
    ]
    ranks = [TrainerActor(one, number=number) for number, one in enumerate(started)]
    group = TrainerGroup(ranks, engine_processes=engine_processes)
    with ended_on_failure(started):
        await group.ready()
    return group


def allocator_options(config: LearnerConfig, *, on_gpus: bool) -> dict[str, Any]:
    """Return the options of Ray by which torch's memory of a rank's GPU grows in segments, and so does not fragment.

    Passes differ in shape. Other processes open such segments slowly, so ranks that push by `cuda_ipc` have none. A variable
    that the user has set stays.
    """
    if not on_gpus or config.transport == CUDA_IPC or any(name in os.environ for name in ALLOCATOR):
        return {}
    return {"runtime_env": {"env_vars": {ALLOCATOR[0]: "expandable_segments:True"}}}


async def _rendezvous(nodes: Sequence[Node]) -> tuple[str, int]:
    """Return where the ranks reach rank 0, which is on loopback where they share a node, and a port that is free there."""
    first = nodes[0]
    host = LOOPBACK if {node.name for node in nodes} == {first.name} else first.address
    here = first.name == ray.get_runtime_context().get_node_id()
    return host, free_port(host) if here else await at_node(first.name, free_port, host)


class TrainerActor:
    """One actor, as `learner/trainer_group.py` sees a rank."""

    def __init__(self, actor: Any, *, number: int) -> None:
        self._actor = actor
        self.name = f"the learner's rank {number}"
        self.place: Place | None = None

    async def ready(self) -> None:
        """Wait until the rank has joined the others."""
        self.place = await self._answer(placed(self._actor))

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

    async def occupy(self, *, weights: bool, states: bool) -> None:
        """Have weights and states on the device, or in main memory."""
        await self._answer(self._actor.occupy.remote(weights=weights, states=states))

    async def holding(self) -> Holding:
        """Return what the rank has on its device."""
        held: Holding = await self._answer(self._actor.holding.remote())
        return held

    async def put(self, shares: Sequence[BatchShare]) -> Shares:
        """Copy a rank's shares into shared memory, where it reads them, beside the event loop; returns what `train` takes."""
        return await in_thread(ray.put, list(shares))

    async def train(self, shares: Shares, *, loss: LossConfig, epochs: int) -> dict[str, float]:
        """Take part in a step on shares that were put; returns its metrics."""
        metrics: dict[str, float] = await self._answer(self._actor.train.remote(shares, loss=loss, epochs=epochs))
        return metrics

    async def token_records(self) -> list[TokenRecord]:
        """Return what the last step made of the tokens of the rank's answers."""
        records: list[TokenRecord] = await self._answer(self._actor.token_records.remote())
        return records

    async def publish(self, version: int) -> WeightManifest | None:
        """Take part in the gathering of the weights; rank 0 returns what was published."""
        manifest: WeightManifest | None = await self._answer(self._actor.publish.remote(version))
        return manifest

    async def why_merged(self) -> str:
        """Return why pushes carry adapters merged into the weights; empty where adapters travel alone."""
        why: str = await self._answer(self._actor.why_merged.remote())
        return why

    async def host(self) -> str:
        """Return the address at which the engines reach the rank."""
        host: str = await self._answer(host_of(self._actor))
        return host

    def offer(self, version: int, *, whole: bool, audience: Audience) -> Offered:
        """Return Ray's reference to the offer, which actors can be given before it is there."""
        reference: Offered = self._actor.offer.remote(version, whole=whole, audience=audience)
        return reference

    async def send(self, version: int) -> None:
        """Do the sender's part while the engines take the push."""
        await self._answer(self._actor.send.remote(version))

    async def checkpoint_bytes(self) -> int:
        """Return what `save` writes, at the most."""
        needed: int = await self._answer(self._actor.checkpoint_bytes.remote())
        return needed

    async def save(self, directory: str, *, beside: bool, spare: int) -> bool:
        """Copy model and optimiser, or write them; returns whether there is something left to write."""
        copied: bool = await self._answer(self._actor.save.remote(directory, beside=beside, spare=spare))
        return copied

    async def write(self) -> None:
        """Write what was copied, beside whatever else the rank does."""
        await self._answer(self._actor.write.options(concurrency_group=FILES).remote())

    async def restore(self, directory: str) -> None:
        """Read what `save` wrote."""
        await self._answer(self._actor.restore.remote(directory))

    async def pulse(self) -> Pulse:
        """Return the rank's signs of life, whatever it is computing."""
        pulse: Pulse = await self._answer(self._actor.pulse.options(concurrency_group=HEALTH).remote())
        return pulse

    def kill(self) -> None:
        """End the process at once; what it was asked raises `LearnerDied`."""
        ray.kill(self._actor)

    async def close(self) -> None:
        """Free what the rank holds, then end the actor."""
        await close_actor(self._actor)

    async def _answer(self, call: Awaitable[Any]) -> Any:
        return await await_actor(call, self.name, died=LearnerDied)

"""Ray: starts it, and turns the plain worker and rank classes into actors. The home of Ray."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from envs.sandbox.seal_probe import MIN_LEVEL_VARIABLE
from learner.batches.batch import TrainBatch
from learner.config import LearnerConfig, OptimConfig
from learner.losses.config import LossConfig
from learner.worker import TrainerWorker
from orchestrator.cluster.actors import answer, close_all, ended_on_failure, gpu_share, together
from orchestrator.cluster.delivery import Broadcast, Meeting, Parcel, RankActor
from rollout.episodes.worker import RolloutConfig, RolloutWorker
from rollout.trajectory import Group, Ticket, WeightVersion
from rollout.weights.manifest import WeightManifest, WholeWeightsNeeded

ROOT = Path(__file__).resolve().parents[2]
CONCURRENT_CALLS = 4096
LOOPBACK = "127.0.0.1"
WorkerActor = Any


def start_ray(*, slots: int, min_sandbox_level: int) -> None:
    """Join the cluster that RAY_ADDRESS names, or start a private one on this machine.

    `slots` is how many actors the run needs. They ask for no CPU of Ray's own accounting, so that a laptop's two cores
    hold them all; their threads are set in the configuration instead. A cluster that is started here asks for a token,
    which Ray makes by default: some of its ports listen on every interface.
    """
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray would run its workers at low priority: whatever else the machine does would starve the engines.
    os.environ.setdefault("RAY_worker_niceness", "0")
    address = os.environ.get("RAY_ADDRESS", "local")
    # the current folder too: a user's own environments are modules there
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    ray.init(
        address=address,
        namespace="temper",
        log_to_driver=False,
        configure_logging=False,
        runtime_env={"env_vars": {"PYTHONPATH": python_path, MIN_LEVEL_VARIABLE: str(min_sandbox_level)}},
        **({"include_dashboard": False, "num_cpus": max(slots, 2)} if address == "local" else {}),
    )


def stop_ray() -> None:
    """Leave the cluster; one that was started here ends with all its processes."""
    if ray.is_initialized():
        ray.shutdown()


class RolloutPool:
    """The rollout workers, seen as one: groups go to the worker with the fewest in flight."""

    def __init__(self, workers: list[WorkerActor], *, retries: int) -> None:
        self._workers = workers
        self._retries = retries
        self._in_flight = [0] * len(workers)

    @classmethod
    async def start(
        cls,
        config: RolloutConfig,
        *,
        model_dir: Path,
        version: WeightVersion,
        seed: int,
        actors: int,
        record_experts: bool = False,
    ) -> "RolloutPool":
        """Start every worker's engine on a model directory, whose weights count as `version`.

        `actors` is how many the run has, its learner's included: where there are as many GPUs, each has one. With
        `record_experts` the engines record the experts that they choose. Raises `ValueError` where they can't, and
        `NoRoomError` where the cluster has too few GPUs free.
        """
        share = await gpu_share(actors, wanted=config.workers)
        actor = ray.remote(RolloutWorker).options(
            num_cpus=0, num_gpus=share, max_concurrency=CONCURRENT_CALLS, max_restarts=0
        )
        pool = cls([actor.remote(config, seed=seed) for _ in range(config.workers)], retries=config.retries)
        with ended_on_failure(pool._workers):
            await pool._all(lambda worker: worker.start.remote(str(model_dir), version.step, record_experts))
        return pool

    async def run_group(self, ticket: Ticket, samples: int) -> Group:
        """A group of answers from the least busy worker; failed ones are tried again, elsewhere where that is possible."""
        index = self._least_busy(range(len(self._workers)))
        group = await self._group_from(index, ticket, samples, attempt=0)
        for attempt in range(1, self._retries + 1):
            if not group.worth_retrying:
                break
            index = self._least_busy([i for i in range(len(self._workers)) if i != index] or [index])
            group = group.mended(await self._group_from(index, ticket, group.worth_retrying, attempt=attempt))
        return group

    def _least_busy(self, indices: Sequence[int]) -> int:
        return min(indices, key=lambda index: self._in_flight[index])

    async def _group_from(self, index: int, ticket: Ticket, samples: int, *, attempt: int) -> Group:
        self._in_flight[index] += 1
        try:
            call = self._workers[index].run_group.remote(ticket, samples, attempt)
            group: Group = await answer(call, f"rollout worker {index}")
            return group
        except asyncio.CancelledError:
            ray.cancel(call)  # else the worker would go on, beside whatever comes next
            raise
        finally:
            self._in_flight[index] -= 1

    async def bare(self, prompts: list[tuple[int, ...]], *, max_tokens: int) -> int:
        """Turns sampled by the engines alone, for measurement; returns their tokens."""
        shares = [prompts[number :: len(self._workers)] for number in range(len(self._workers))]
        calls = [w.bare.remote(share, max_tokens) for w, share in zip(self._workers, shares, strict=True)]
        return sum(await asyncio.gather(*(answer(call, f"rollout worker {n}") for n, call in enumerate(calls))))

    async def isolation(self) -> set[str]:
        """What the workers say about their sandboxes, each line once."""
        return set(await self._all(lambda worker: worker.isolation.remote()))

    async def load_weights(self, manifest: WeightManifest) -> WeightVersion:
        """Push to every worker, whole to one that lacks a delta's base; returns the version that all of them confirm."""
        parcel, plain = manifest.payload, replace(manifest, payload=None)
        if isinstance(parcel, Broadcast):
            return await self._receive(plain, parcel)

        async def push(worker: WorkerActor) -> WeightVersion:
            # Ray hands the worker the object itself in place of a reference that is an argument of its own.
            try:
                return await worker.load_weights.remote(plain, parcel and parcel.fetch(whole=False))
            except WholeWeightsNeeded:
                return await worker.load_weights.remote(plain.whole(), parcel and parcel.fetch(whole=True))

        return _agreed(await self._all(push))

    async def _receive(self, manifest: WeightManifest, push: Broadcast) -> WeightVersion:
        """A push that all workers take part in while it is sent."""
        seats = await push.meeting.seats(self._workers)
        calls = [w.load_weights.remote(replace(manifest, seat=s)) for w, s in zip(self._workers, seats, strict=True)]
        loading = (answer(call, f"rollout worker {n}") for n, call in enumerate(calls))
        _, *confirmed = await asyncio.gather(answer(push.send(), "the learner's rank 0"), *loading)
        return _agreed(confirmed)

    async def _all(self, call: Callable[[WorkerActor], Awaitable[Any]]) -> list[Any]:
        return await together(call, self._workers, "rollout worker")

    async def close(self) -> None:
        """Stop the engines, then the actors."""
        await close_all(self._workers)


def _agreed(confirmed: list[WeightVersion]) -> WeightVersion:
    assert len(set(confirmed)) == 1, confirmed
    return confirmed[0]


class TrainerGroup:
    """The learner's ranks, seen as one. Every call goes to all ranks at once, since each is a collective."""

    def __init__(self, ranks: list[RankActor], *, broadcast: bool = False) -> None:
        """With `broadcast` pushes are sent to all engines at once."""
        self._ranks = ranks
        self._loss = LossConfig()
        self._meeting = Meeting(ranks[0], host_of) if broadcast else None

    @classmethod
    async def start(cls, config: LearnerConfig, *, actors: int) -> "TrainerGroup":
        """Start one actor per rank, and wait until they have joined each other on loopback.

        `actors`: see `RolloutPool.start`.
        """
        share = await gpu_share(actors, wanted=config.ranks)
        actor = ray.remote(TrainerWorker).options(num_cpus=0, num_gpus=share, max_restarts=0)
        port = free_port()
        ranks = [actor.remote(rank, config.ranks, LOOPBACK, port, config) for rank in range(config.ranks)]
        group = cls(ranks, broadcast=config.carrier == "broadcast")
        with ended_on_failure(ranks):
            await group._all(lambda rank: rank.__ray_ready__.remote())
        return group

    async def load(
        self, model_dir: Path, *, optim: OptimConfig, loss: LossConfig, total_steps: int, teacher: Path | None = None
    ) -> None:
        """Load a model with a fresh optimiser, to learn from a teacher if one is given."""
        self._loss = loss
        told = {"optim": optim, "total_steps": total_steps, "teacher_dir": None if teacher is None else str(teacher)}
        await self._all(lambda rank: rank.load.remote(str(model_dir), **told))

    async def load_reference(self) -> None:
        """Load the frozen weights that the loss compares with, beside the model."""
        await self._all(lambda rank: rank.load_reference.remote())

    async def use_threads(self, threads: int) -> None:
        """Compute with this many CPU threads in each rank."""
        await self._all(lambda rank: rank.use_threads.remote(threads))

    async def step(self, *batches: TrainBatch, epochs: int = 1) -> dict[str, float]:
        """An update from each of these mini-batches, `epochs` times over; the metrics are over all of them."""
        shared = ray.put(batches)
        results = await self._all(lambda rank: rank.train.remote(shared, loss=self._loss, epochs=epochs))
        metrics: dict[str, float] = results[0]
        return metrics

    async def publish(self, version: WeightVersion) -> WeightManifest:
        """Write the weights where the engines can read them, or have them ready in rank 0."""
        results = await self._all(lambda rank: rank.publish.remote(version.step))
        manifest: WeightManifest = results[0]
        if manifest.path:
            return manifest
        if self._meeting is not None:
            return replace(manifest, payload=Broadcast(self._ranks[0], self._meeting, version=version))
        return replace(manifest, payload=Parcel(self._ranks[0], version=version))

    async def checkpoint_bytes(self) -> int:
        """What `save` writes, at the most."""
        needed: int = (await self._all(lambda rank: rank.checkpoint_bytes.remote()))[0]
        return needed

    async def save(self, directory: Path) -> None:
        """Write model and optimiser."""
        await self._all(lambda rank: rank.save.remote(str(directory)))

    async def restore(self, directory: Path) -> None:
        """Read the optimiser, schedule and random state that `save` wrote."""
        await self._all(lambda rank: rank.restore.remote(str(directory)))

    async def close(self) -> None:
        """Stop the actors."""
        await close_all(self._ranks)

    async def _all(self, call: Callable[[RankActor], Awaitable[Any]]) -> list[Any]:
        return await together(call, self._ranks, "the learner's rank")


async def host_of(actor: Any) -> str:
    """The address at which other actors reach an actor's machine: loopback where the cluster has no other machine."""
    if sum(node["Alive"] for node in ray.nodes()) == 1:
        return LOOPBACK
    address: str = await actor.__ray_call__.remote(lambda _actor: ray.util.get_node_ip_address())
    return address


def free_port() -> int:
    """A free port on loopback, for the ranks to meet."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port

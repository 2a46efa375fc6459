"""Processes and weight pushes on two hosts: a Ray cluster with two nodes on this machine."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from support.pushes import held
from unit.rollout.weights.test_push import SHAPES, Weights, nudged, same, segment_sender, weights

from temper.envs.core.process import WorkerDied
from temper.envs.core.task import EnvRef, Task
from temper.learner.config import LearnerConfig
from temper.learner.trainer_group import TrainerGroup
from temper.learner.weight_sender import BucketSender, SegmentSender
from temper.orchestrator.cluster.actors import ActorProcess, run_at_place
from temper.orchestrator.cluster.bundles import cluster_nodes, describe_used_gpus, reserve
from temper.orchestrator.cluster.placement import NoRoomError, PlacementRequest
from temper.orchestrator.cluster.run_actors import rank_handle, start_trainer_group
from temper.orchestrator.cluster.this_machine import worker_variables
from temper.orchestrator.loop.deadline import Deadline, StuckError, within
from temper.orchestrator.session.diagnosis import diagnose
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.episodes.worker import WorkerHandle
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.pool.restarts import RestartLimit
from temper.rollout.pool.slot_keeper import RestartPolicy
from temper.rollout.trajectory import Ticket, WeightVersion
from temper.rollout.weights.buckets import BucketGroup, BucketReceiver
from temper.rollout.weights.delivery import ServedWeights
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.receiver import WeightReceiver
from temper.rollout.weights.transports import Receivers

MODULES = (sys.modules[__name__], sys.modules["unit.rollout.weights.test_push"], sys.modules["support.pushes"])
"""Sent to the actors by value, else each imports all imports of these files."""


class Sender:
    """The learner's rank in the cluster, without a model."""

    def __init__(self, transport: str) -> None:
        cpu = torch.device("cpu")
        self.publisher: SegmentSender | BucketSender = (
            segment_sender()
            if transport == "shared_memory"
            else BucketSender(shapes=SHAPES, dtype="bfloat16", rank=0, ranks=1, device=cpu, timeout_s=60.0)
        )
        self.asked: list[bool] = []

    def publish(self, version: int) -> WeightManifest:
        if isinstance(self.publisher, BucketSender):
            return self.publisher.push(version)
        return self.publisher.push(version, gathered=[nudged(weights(seed=0), count=version)])

    def offer(self, version: int, *, with_base: bool, receivers: Receivers) -> object:
        self.asked.append(with_base)
        return self.publisher.offer(version, with_base=with_base, receivers=receivers)

    def send(self, version: int) -> None:
        if isinstance(self.publisher, BucketSender):
            self.publisher.send(version, [nudged(weights(seed=0), count=version)])

    def facts(self) -> tuple[str, list[bool]]:
        return ray.get_runtime_context().get_node_id(), self.asked


class Receiver:
    """A rollout worker in the cluster, without an engine."""

    def __init__(self) -> None:
        self.receiver, self.buckets = WeightReceiver(), BucketReceiver()
        self.version = -1

    async def load_weights(self, manifest: WeightManifest, offer: object, number: int) -> WeightVersion:
        found = await asyncio.to_thread(self.took, manifest, offer, number)
        assert same(found, nudged(weights(seed=0), count=manifest.version))
        self.version = manifest.version
        return manifest.weight_version

    def took(self, manifest: WeightManifest, offer: object, number: int) -> Weights:
        if not isinstance(offer, BucketGroup):
            return held(self.receiver.receive(manifest, offer))
        found: Weights = {}
        cpu = torch.device("cpu")
        self.buckets.receive(manifest, offer, found.update, member=1 + number, device=cpu)
        return found

    async def start(self, model_dir: str, version: int, record_experts: bool, sleeps: bool) -> WeightVersion:
        return WeightVersion(step=version)

    async def wait_until_dead(self) -> None:
        await asyncio.Event().wait()

    async def holds(self) -> int:
        return self.version

    async def close(self) -> None:
        self.receiver.close()

    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()


def worker_handle(actor: Any, number: int) -> WorkerHandle:
    process = ActorProcess(actor, name=f"rollout worker {number}", died=WorkerDied)
    return WorkerHandle(process, number=number)


async def pool_of(engines: list[Any]) -> RolloutPool:
    pool = RolloutPool(
        lambda number: worker_handle(engines[number], number),
        workers=len(engines),
        weights=ServedWeights(Path("model"), WeightVersion(step=0), push_s=lambda nbytes: 60.0),
        retries=0,
    )
    await pool.start()
    return pool


async def pushes_to_another_host(transport: str) -> None:
    """Three pushes from one host to two engines on another."""
    rank = ray.remote(Sender).options(num_cpus=0, resources={"learner": 1}).remote(transport)
    engines = [ray.remote(Receiver).options(num_cpus=0, resources={"engine": 1}).remote() for _ in range(2)]
    learner, pool = TrainerGroup([rank_handle(rank, number=0)], engine_processes=1), await pool_of(engines)
    for version in (1, 2, 3):
        push = await learner.publish(WeightVersion(step=version))
        assert await pool.load_weights(push) == WeightVersion(step=version)
    home, asked = await rank.facts.remote()
    assert {await engine.node.remote() for engine in engines}.isdisjoint({home})
    assert asked == [False] * 3  # once for each push, not once for each engine


async def workers_outlive_their_machine(cluster: Cluster, machine: Any) -> None:
    """Two workers lose their machine and wait for another one, where they load the push that they missed."""
    rank = ray.remote(Sender).options(num_cpus=0, resources={"learner": 1}).remote("shared_memory")
    learner, receiver = TrainerGroup([rank_handle(rank, number=0)], engine_processes=1), ray.remote(Receiver)
    made: list[Any] = []

    def spawn(number: int) -> WorkerHandle:
        made.append(receiver.options(num_cpus=0, resources={"engine": 1}).remote())
        return worker_handle(made[-1], number)

    # Their first replacements are placed on the lost machine, until Ray knows: a second wave of failures.
    restart_policy = RestartPolicy(restarts=RestartLimit(3, window_s=1800.0, together_s=10.0))
    weights = ServedWeights(Path("model"), WeightVersion(step=0), push_s=lambda nbytes: 60.0)
    pool = RolloutPool(spawn, workers=2, weights=weights, retries=0, restart_policy=restart_policy)
    await pool.start()
    await pool.load_weights(await learner.publish(WeightVersion(step=1)))
    await a_stopped_worker_is_looked_at_on_its_own_node(pool)
    cluster.remove_node(machine, allow_graceful=False)
    await seen(lambda: [(slot.state, slot.restarts) for slot in pool.processes()] == [("starting", 1)] * 2)
    push = await learner.publish(WeightVersion(step=2))
    assert await pool.load_weights(push) == WeightVersion(step=2)  # no receiver is left
    cluster.add_node(num_cpus=1, resources={"engine": 4})
    await seen(lambda: [slot.state for slot in pool.processes()] == ["serving"] * 2)
    assert await asyncio.gather(*(one.holds.remote() for one in made[-2:])) == [2, 2]
    pool.resize(3)  # the new machine has room for more
    await seen(lambda: [slot.state for slot in pool.processes()] == ["serving"] * 3)
    pool.resize(1)
    await seen(lambda: [slot.state for slot in pool.processes()] == ["serving"])
    await pool.close()


async def a_stopped_worker_is_looked_at_on_its_own_node(pool: RolloutPool) -> None:
    """Both nodes have this machine's name, and are still distinguished."""
    process = pool.processes()[0].process
    assert process is not None
    assert process.place is not None
    assert process.place.host == socket.gethostname()
    assert await run_at_place(process.place, _node) == process.place.node != _node()
    os.kill(process.place.pid, signal.SIGSTOP)
    try:
        found = await diagnose(process, "no answer", kind="hung")
    finally:
        os.kill(process.place.pid, signal.SIGCONT)
    assert f"== process {process.place.pid} ray::Receiver" in found.evidence
    assert ": stopped," in found.evidence
    assert "Thread" in found.evidence or "no stacks:" in found.evidence
    assert process.place.pid in [key.pid for key in found.processes]


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


async def seen(ready: Callable[[], bool]) -> None:
    deadline = monotonic() + 120
    while not ready():
        assert monotonic() < deadline
        await asyncio.sleep(0.05)


class Sampler:
    """A rollout worker whose answers never end."""

    def __init__(self) -> None:
        self.running = 0

    async def start(self, model_dir: str, version: int, record_experts: bool, sleeps: bool) -> WeightVersion:
        return WeightVersion(step=version)

    async def wait_until_dead(self) -> None:
        await asyncio.Event().wait()

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, partial: PartialGroup | None) -> None:
        self.running += 1
        try:
            await asyncio.sleep(1000)
        finally:
            self.running -= 1

    async def count(self) -> int:
        return self.running


async def a_group_that_nobody_waits_for_ends() -> None:
    worker = ray.remote(Sampler).options(num_cpus=0, max_concurrency=10).remote()
    task = Task(env=EnvRef(name="math"), key="1", messages=({"role": "user", "content": "?"},), spec={})
    ticket = Ticket(number=1, task=task, admitted=WeightVersion(step=0))
    pool = await pool_of([worker])
    waiting = asyncio.gather(*(pool.run_group(ticket, 4) for _ in range(3)))
    for wanted in (3, 0):
        deadline = monotonic() + 20
        while await worker.count.remote() != wanted:
            assert monotonic() < deadline, wanted
            await asyncio.sleep(0.05)
        waiting.cancel()
    ray.kill(worker)


class Seen:
    """A process's view of its GPUs."""

    def gpus(self) -> tuple[str, str]:
        return _node(), os.environ["CUDA_VISIBLE_DEVICES"]


async def what_is_reserved_lies_where_it_should() -> None:
    """Two machines, with 16 GPUs and 4: ranks are packed, engines spread, pairs share one GPU."""
    bundles = await reserve(PlacementRequest(ranks=2, engines=4))
    assert len({node.name for _, node in await bundles.ranks()}) == 1
    engines = [ray.remote(Seen).options(**bundles.engine(number).options()).remote() for number in range(4)]
    assert len({node for node, _ in await asyncio.gather(*(engine.gpus.remote() for engine in engines))}) == 2
    bundles.free()
    bundles = await reserve(PlacementRequest(ranks=18))
    ranks = [node.name for _, node in await bundles.ranks()]
    assert ranks == [_node()] * 16 + [ranks[-1]] * 2
    assert ranks[-1] != _node()
    bundles.free()
    bundles = await reserve(PlacementRequest(ranks=18, engines=18, colocated=True))
    pair = (await bundles.ranks())[17][0], bundles.engine(17)
    actors = [ray.remote(Seen).options(**one.options()).remote() for one in pair]
    rank, engine = await asyncio.gather(*(actor.gpus.remote() for actor in actors))
    assert rank == engine
    assert [one.gpus for one in pair] == [0.5, 0.5]
    added = bundles.engine(18)
    assert added.own
    added.free()
    assert await bundles.at_first_rank(_node) == _node()
    bundles.free()
    holder = ray.remote(Seen).options(num_cpus=0, num_gpus=16).remote()
    await holder.gpus.remote()
    bundles = await reserve(PlacementRequest(ranks=1))
    assert await bundles.at_first_rank(_node) == ranks[-1]
    bundles.free()
    ray.kill(holder)
    await seen(lambda: sum(node.free for node in cluster_nodes()) == 20)


async def what_has_no_room_is_said_at_once() -> None:
    holder = ray.remote(Receiver).options(num_cpus=0, num_gpus=12).remote()
    await holder.node.remote()
    began = monotonic()
    with pytest.raises(NoRoomError, match=r"12 GPUs, for 12 ranks.*4 of 16 free"):
        await reserve(PlacementRequest(ranks=12))
    with pytest.raises(NoRoomError, match="17 GPUs, for 1 engine with 17 GPUs of one machine each"):
        await reserve(PlacementRequest(engines=1, processes=17))
    assert monotonic() - began < 20
    starting = start_trainer_group(
        LearnerConfig(), bundles=await reserve(PlacementRequest(ranks=1)), engine_processes=1
    )
    limit = Deadline(seconds=0.5, setting="deadlines.start_s")
    with pytest.raises(StuckError, match=r"13 of 20 GPUs.*deadlines.start_s"):
        await within(limit, starting, stage="sft", waiting_for=lambda: f"the ranks{describe_used_gpus()}")
    ray.kill(holder)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hosts():
    for module in MODULES:
        ray.cloudpickle.register_pickle_by_value(module)
    head = {"num_cpus": 1, "num_gpus": 16, "resources": {"learner": 3}, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        machine = cluster.add_node(num_cpus=1, num_gpus=4, resources={"engine": 6})
        environment = {"env_vars": {"PYTHONPATH": worker_variables()["PYTHONPATH"]}}
        ray.init(address=cluster.address, log_to_driver=False, runtime_env=environment)
        asyncio.run(what_is_reserved_lies_where_it_should())
        asyncio.run(what_has_no_room_is_said_at_once())
        for transport in ("shared_memory", "broadcast"):
            asyncio.run(pushes_to_another_host(transport))
        asyncio.run(workers_outlive_their_machine(cluster, machine))
        asyncio.run(a_group_that_nobody_waits_for_ends())
    finally:
        ray.shutdown()
        cluster.shutdown()
        for module in MODULES:
            ray.cloudpickle.unregister_pickle_by_value(module)

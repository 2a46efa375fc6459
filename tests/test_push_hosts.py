"""A weight push between hosts: a cluster of Ray with two of them on this machine."""

import asyncio
import sys
from dataclasses import replace

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from test_weight_push import held, nudged, publisher, same, weights

from orchestrator.cluster import ROOT, Fleet, LearnerGroup
from rollout.manifest import WeightManifest
from rollout.trajectory import WeightVersion
from rollout.weight_group import Seat, WeightGroup
from rollout.weight_inbox import WeightInbox

MODULES = (sys.modules[__name__], sys.modules["test_weight_push"])
"""Sent to the actors whole, else each imports all of these files' imports."""


class Sender:
    """The learner's rank as the cluster sees it, without a model."""

    def __init__(self, carrier: str) -> None:
        self.publisher = publisher(carrier, sparse=carrier == "ray")
        self.asked: list[bool] = []

    def publish(self, version: int) -> WeightManifest:
        return self.publisher.push(version, buckets=[nudged(weights(seed=0), count=version)])

    def payload(self, version: int, *, whole: bool) -> np.ndarray:
        self.asked.append(whole)
        return self.publisher.payload(version, whole=whole)

    def meet(self, host: str, size: int) -> int:
        self.group = WeightGroup(Seat(host=host, port=0, rank=0, size=size))
        return self.group.seat.port

    def broadcast(self, version: int) -> None:
        self.group.broadcast(self.publisher.segment(version))

    def facts(self) -> tuple[str, list[bool]]:
        return ray.get_runtime_context().get_node_id(), self.asked


class Receiver:
    """A rollout worker as the cluster sees it, without an engine."""

    def __init__(self) -> None:
        self.inbox = WeightInbox()

    async def load_weights(self, manifest: WeightManifest, payload: np.ndarray | None = None) -> WeightVersion:
        arrived = await asyncio.to_thread(self.inbox.accept, replace(manifest, payload=payload))
        assert same(held(arrived), nudged(weights(seed=0), count=manifest.version))
        return arrived.weight_version

    def restart(self) -> None:
        self.inbox.close()

    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()


async def pushes_to_another_host() -> None:
    """Three pushes from one host to two engines on another, one of which restarts before the last."""
    rank = ray.remote(Sender).options(num_cpus=0, resources={"learner": 1}).remote("ray")
    engines = [ray.remote(Receiver).options(num_cpus=0, resources={"engine": 1}).remote() for _ in range(2)]
    learner, fleet = LearnerGroup([rank]), Fleet(engines, retries=0)
    for version in (1, 2):
        manifest = await learner.publish(WeightVersion(step=version))
        assert await fleet.load_weights(manifest) == WeightVersion(step=version)
    await engines[1].restart.remote()
    assert await fleet.load_weights(await learner.publish(WeightVersion(step=3))) == WeightVersion(step=3)
    home, asked = await rank.facts.remote()
    assert {await engine.node.remote() for engine in engines}.isdisjoint({home})
    # Once for each push, not once for each engine; whole only for the one that had lost its copy.
    assert asked == [False, False, False, True]


async def broadcasts_to_another_host() -> None:
    """Three pushes that two engines get at once."""
    rank = ray.remote(Sender).options(num_cpus=0, resources={"learner": 1}).remote("broadcast")
    engines = [ray.remote(Receiver).options(num_cpus=0, resources={"engine": 1}).remote() for _ in range(2)]
    learner, fleet = LearnerGroup([rank], broadcast=True), Fleet(engines, retries=0)
    for version in (1, 2, 3):
        manifest = await learner.publish(WeightVersion(step=version))
        assert await fleet.load_weights(manifest) == WeightVersion(step=version)
    home, asked = await rank.facts.remote()
    assert {await engine.node.remote() for engine in engines}.isdisjoint({home})
    assert asked == []


@pytest.mark.timeout(600)
def test_weights_reach_engines_on_another_host_and_one_that_restarted_gets_them_whole():
    for module in MODULES:
        ray.cloudpickle.register_pickle_by_value(module)
    head = {"num_cpus": 1, "resources": {"learner": 2}, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=1, resources={"engine": 4})
        environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
        ray.init(address=cluster.address, log_to_driver=False, runtime_env=environment)
        asyncio.run(pushes_to_another_host())
        asyncio.run(broadcasts_to_another_host())
    finally:
        ray.shutdown()
        cluster.shutdown()
        for module in MODULES:
            ray.cloudpickle.unregister_pickle_by_value(module)

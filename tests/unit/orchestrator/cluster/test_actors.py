"""What Ray says of a process that has ended, told as the death of its worker."""

import asyncio

import pytest
import ray
from ray.exceptions import ActorDiedError, NodeDiedError, OutOfMemoryError, RayError

from temper.envs.core.member import LearnerDied, WorkerDied
from temper.learner.config import LearnerConfig
from temper.orchestrator.cluster.actors import await_actor, living_nodes
from temper.orchestrator.cluster.run_actors import allocator_options


@pytest.mark.parametrize(
    "said", [ActorDiedError(), OutOfMemoryError("memory is nearly full"), NodeDiedError("the machine is gone")]
)
def test_however_a_process_ended_that_is_its_death(said: RayError) -> None:
    async def call() -> None:
        raise said

    with pytest.raises(WorkerDied, match="rollout worker 0 died"):
        asyncio.run(await_actor(call(), "rollout worker 0", died=WorkerDied))
    with pytest.raises(LearnerDied, match="rank 1 died"):
        asyncio.run(await_actor(call(), "rank 1", died=LearnerDied))


def test_a_mere_head_holds_no_process_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    offers: dict[str, dict[str, float]] = {"head": {}, "gpus": {"GPU": 8.0}, "cpus": {"CPU": 4.0}}
    found = [{"NodeID": name, "Alive": True, "Resources": offered} for name, offered in offers.items()]
    monkeypatch.setattr(ray, "nodes", lambda: found)
    assert asyncio.run(living_nodes()) == ["head", "gpus", "cpus"]
    assert asyncio.run(living_nodes(hosts=True)) == ["gpus", "cpus"]


def test_ranks_on_gpus_have_segments_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    usual = LearnerConfig(transport="broadcast")
    grown = {"runtime_env": {"env_vars": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}}}
    assert allocator_options(usual, on_gpus=True) == grown
    assert allocator_options(LearnerConfig(transport="cuda_ipc"), on_gpus=True) == {}
    assert allocator_options(usual, on_gpus=False) == {}
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    assert allocator_options(usual, on_gpus=True) == {}

"""What Ray says of a process that has ended, told as the death of its worker."""

import asyncio

import pytest
from ray.exceptions import ActorDiedError, NodeDiedError, OutOfMemoryError, RayError

from temper.envs.core.member import LearnerDied, WorkerDied
from temper.learner.config import LearnerConfig
from temper.orchestrator.cluster.actors import await_actor
from temper.orchestrator.cluster.trainer_actors import allocator_options


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

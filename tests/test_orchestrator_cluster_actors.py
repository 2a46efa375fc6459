"""What Ray says of a process that has ended, told as the death of its worker."""

import asyncio

import pytest
from ray.exceptions import ActorDiedError, NodeDiedError, OutOfMemoryError, RayError

from envs.core.pulse import LearnerDied, WorkerDied
from orchestrator.cluster.actors import await_actor


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

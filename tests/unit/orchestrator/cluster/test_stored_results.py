"""Results that stay in Ray's shared memory: other processes read them, they outlive their actor, and a loss is typed."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.exceptions import ObjectLostError
from support import turns
from support.turns import turn_of

from temper.envs.core.process import ResultLost, WorkerDied
from temper.envs.core.task import EnvRef, Task
from temper.orchestrator.cluster.actors import ActorProcess, RayResult, run_in_task
from temper.orchestrator.cluster.ray_cluster import start_ray, stop_ray
from temper.rollout.episodes.worker import WorkerHandle
from temper.rollout.stored_turns import read_all_groups, store_turns
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, WeightVersion

TASK = Task(env=EnvRef(name="math"), key="1", messages=({"role": "user", "content": "?"},), spec={})
TICKET = Ticket(number=3, task=TASK, admitted=WeightVersion(step=0))


def made(answers: int) -> Group:
    turn = turn_of(range(50_000), context=(1, 2))  # too long for a message
    answer = Trajectory(task=TASK, turns=(turn,), stop=Stop.ENV, reward=1.0)
    return Group(ticket=TICKET, trajectories=(answer,) * answers)


class Worker:
    """A worker with ready answers."""

    async def run_stored_group(self, ticket: Ticket, samples: int, *_: object) -> object:
        return store_turns(made(samples))


class Rank:
    """A rank that reads groups."""

    def count_tokens(self, groups: list[Group]) -> int:
        return count_tokens(groups)


def count_tokens(groups: list[Group]) -> int:
    return sum(len(turn.sampled_ids) for one in read_all_groups(groups) for t in one.trajectories for turn in t.turns)


def refuse(groups: list[Group]) -> None:
    raise OSError("no space")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(Path(turns.__file__).parents[1]))  # the workers import this module
    start_ray(slots=2, min_sandbox_level=0)
    try:
        yield
    finally:
        stop_ray()


def test_stored_turns_outlive_their_worker(cluster: None) -> None:
    async def work() -> None:
        actor = ray.remote(num_cpus=0)(Worker).remote()
        handle = WorkerHandle(ActorProcess(actor, name="w", died=WorkerDied), number=0)
        groups = [await handle.run_group(TICKET, 2, 0, None)]
        handle.kill()
        rank = ActorProcess(ray.remote(num_cpus=0)(Rank).remote(), name="r", died=WorkerDied)
        given = await rank.put(groups)
        assert await rank.call("count_tokens", given) == 100_000
        assert await run_in_task(count_tokens, groups) == 100_000
        with pytest.raises(OSError, match="no space"):
            await run_in_task(refuse, groups)
        reference = groups[0].trajectories[0].turns.reference  # type: ignore[attr-defined]
        assert np.array_equal((await reference.read())[1][0].sampled_ids, np.arange(50_000))

    asyncio.run(asyncio.wait_for(work(), 120.0))


def test_a_result_whose_node_failed_is_lost() -> None:
    async def gone() -> object:
        raise ObjectLostError("ab", None, "")

    with pytest.raises(ResultLost):
        asyncio.run(RayResult(gone()).read())

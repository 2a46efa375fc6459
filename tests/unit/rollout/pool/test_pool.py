"""The pool of rollout workers, driven with plain objects: assignment, retries and stops."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from support.in_loop import in_loop
from support.plain_pool import TASK, TICKET, Worker, pool_of, settle
from support.pushes import empty_push

from temper.envs.core.judge_config import JudgeConfig
from temper.envs.core.process import WorkerDied
from temper.envs.core.task import EnvSettings
from temper.rollout.episodes.resume import PartialEpisode, PartialGroup
from temper.rollout.trajectory import NO_TIME, FailureKind, Group, Stop, Ticket, Trajectory, WeightVersion

NOTHING = PartialEpisode(turns=(), turn=None, seconds=0.0, times=NO_TIME)


@pytest.mark.parametrize(
    ("failures", "retries", "calls", "failed", "retried"),
    [
        ([3, 0], 1, [[(4, 0)], [(3, 1)]], 0, 3),  # on another worker
        ([1], 1, [[(4, 0), (1, 1)]], 1, 1),  # by itself
        ([4, 4], 2, [[(4, 0), (4, 2)], [(4, 1)]], 4, 8),  # repeated failures are never a zero
        ([1, 0], 0, [[(4, 0)], []], 1, 0),
    ],
)
@in_loop
async def test_failed_episodes_are_tried_again_elsewhere_if_possible(
    failures: list[int], retries: int, calls: list[list[tuple[int, int]]], failed: int, retried: int
) -> None:
    workers = [Worker(count) for count in failures]
    group = await (await pool_of(workers, retries=retries)).run_group(TICKET, 4)
    assert [worker.calls for worker in workers] == calls
    assert (group.rewards_G, len(group.failed), len(group.retried)) == ([1.0] * (4 - failed), failed, retried)


class Interrupted(Worker):
    """Reports a partial group, and keeps the one it should continue."""

    def __init__(self, failures: int = 0, *, held: bool = False, finished: int = 0) -> None:
        super().__init__(failures, held=held)
        self.finished = finished
        self.partial: list[PartialGroup | None] = []

    async def groups_in_flight(self) -> list[PartialGroup]:
        finished = {n: Trajectory(task=TASK, turns=(), stop=Stop.ENV, reward=0.5) for n in range(self.finished)}
        _, attempt = self.calls[-1]
        return [PartialGroup(ticket=TICKET, attempt=attempt, finished=finished)]

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, partial: PartialGroup | None) -> Group:
        self.partial.append(partial)
        return await super().run_group(ticket, samples, attempt, partial)


@in_loop
async def test_a_second_attempt_keeps_the_firsts_answers() -> None:
    pool = await pool_of([Interrupted(3), Interrupted(held=True, finished=1)], retries=1)
    playing = asyncio.create_task(pool.run_group(TICKET, 4))
    await settle()
    (left,) = await pool.groups_in_flight()
    playing.cancel()
    await asyncio.wait([playing])
    worker = Interrupted()
    group = await (await pool_of([worker], retries=1)).run_group(TICKET, 4, left)
    assert left.before is not None
    assert (left.attempt, left.finished[0].reward, len(left.before.trajectories)) == (1, 0.5, 1)
    assert worker.calls == [(3, 1)]
    (handed,) = worker.partial
    assert handed is not None
    assert handed.finished == left.finished
    assert (len(group.trajectories), len(group.failed), len(group.retried)) == (4, 0, 3)


@in_loop
async def test_a_worker_that_died_leaves_what_was_known_of_its_groups() -> None:
    class Dead(Interrupted):
        async def groups_in_flight(self) -> list[PartialGroup]:
            raise WorkerDied("killed")

    given = PartialGroup(ticket=TICKET, attempt=0, unfinished={2: NOTHING})
    pool = await pool_of([Dead(held=True)], retries=1)
    playing = asyncio.create_task(pool.run_group(TICKET, 4, given))
    await settle()
    (left,) = await pool.groups_in_flight()
    playing.cancel()
    await asyncio.wait([playing])
    assert left == given


@in_loop
async def test_a_prompt_that_is_too_long_is_not_tried_again() -> None:
    worker = Worker(2, FailureKind.PROMPT_TOO_LONG)
    group = await (await pool_of([worker], retries=3)).run_group(TICKET, 4)
    assert worker.calls == [(4, 0)]
    assert (len(group.trajectories), len(group.failed), group.retried) == (2, 2, ())


@in_loop
async def test_groups_go_to_the_worker_with_the_fewest_in_flight() -> None:
    slow, quick = Worker(held=True), Worker(held=True)
    pool = await pool_of([slow, quick])
    first = [asyncio.create_task(pool.run_group(TICKET, 1)) for _ in range(4)]
    await settle()
    running = [slow.running, quick.running]
    quick.released.set()  # it is free again, and gets all new groups
    await settle()
    await asyncio.gather(*(pool.run_group(TICKET, 1) for _ in range(2)))
    slow.released.set()
    await asyncio.gather(*first)
    assert [*running, len(slow.calls), len(quick.calls)] == [2, 2, 2, 4]


@in_loop
async def test_a_cancelled_group_frees_its_worker() -> None:
    workers = [Worker(held=True), Worker(held=True)]
    pool = await pool_of(workers, retries=3)
    given_up = asyncio.create_task(pool.run_group(TICKET, 1))
    await settle()
    given_up.cancel()
    await asyncio.wait([given_up])
    for worker in workers:
        worker.released.set()
    await pool.run_group(TICKET, 1)  # the first worker counts as free: the group comes to it again
    assert (workers[0].cancelled, workers[0].running, [len(worker.calls) for worker in workers]) == (1, 0, [2, 0])


@in_loop
async def test_every_worker_loads_samples_and_is_counted() -> None:
    workers = [Worker(), Worker()]
    workers[1].lacks_base = True
    pool = await pool_of(workers)
    assert await pool.load_weights(empty_push(7, nbytes=64)) == WeightVersion(step=7)
    assert not workers[1].lacks_base
    assert await pool.load_checkpoint(Path("model"), WeightVersion(step=8)) == WeightVersion(step=8)
    assert pool.model == Path("model")
    assert await pool.sample_bare([(1,), (2,), (3,)], max_tokens=5) == 15
    stats = await pool.engine_stats()
    assert (stats.passes, stats.running, stats.cache_use, stats.sampled_tokens) == (4, 6.0, 0.5, 20)


@in_loop
async def test_the_answers_of_all_attempts_are_compared_once() -> None:
    judge = JudgeConfig(url="http://127.0.0.1:1/v1", model="m", compare=True)
    task = replace(TASK, env=replace(TASK.env, settings=EnvSettings(judge=judge)))
    workers = [Worker(failures=2), Worker()]

    group = await (await pool_of(workers, retries=1)).run_group(replace(TICKET, task=task), 4)
    assert len(group.trajectories) == 4
    assert [did for one in workers for did in one.did if did.startswith("compare")] == ["compare 4"]

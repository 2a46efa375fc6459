"""The pool of rollout workers, driven with plain objects: who gets a group, what is tried again, and what a stop ends."""

import asyncio
from pathlib import Path

from support.plain_pool import TASK, TICKET, Worker, pool_of, settle
from support.pushes import empty_push

from temper.envs.core.member import WorkerDied
from temper.rollout.episodes.resume import BegunEpisode, BegunGroup
from temper.rollout.trajectory import NO_TIME, FailureKind, Group, Stop, Ticket, Trajectory, WeightVersion

NOTHING = BegunEpisode(turns=(), turn=None, seconds=0.0, times=NO_TIME)


def run(failures: list[int], *, retries: int) -> tuple[Group, list[list[tuple[int, int]]]]:
    workers = [Worker(count) for count in failures]

    async def work() -> Group:
        return await (await pool_of(workers, retries=retries)).run_group(TICKET, 4)

    return asyncio.run(work()), [worker.calls for worker in workers]


def test_failed_episodes_are_tried_again_on_another_worker() -> None:
    group, calls = run([3, 0], retries=1)
    assert calls == [[(4, 0)], [(3, 1)]]
    assert (group.rewards_G, group.failed, len(group.retried)) == ([1.0] * 4, (), 3)


def test_a_single_worker_tries_again_itself() -> None:
    group, calls = run([1], retries=1)
    assert calls == [[(4, 0), (1, 1)]]
    assert (len(group.trajectories), len(group.failed), len(group.retried)) == (3, 1, 1)


def test_what_fails_everywhere_stays_a_failure_and_never_a_zero() -> None:
    group, calls = run([4, 4], retries=2)
    assert calls == [[(4, 0), (4, 2)], [(4, 1)]]
    assert (group.rewards_G, len(group.failed), len(group.retried)) == ([], 4, 8)


class Interrupted(Worker):
    """Says of its attempt what a worker would say, and keeps with what it was asked to go on."""

    def __init__(self, failures: int = 0, *, held: bool = False, finished: int = 0) -> None:
        super().__init__(failures, held=held)
        self.finished = finished
        self.begun: list[BegunGroup | None] = []

    async def groups_in_flight(self) -> list[BegunGroup]:
        finished = {n: Trajectory(task=TASK, turns=(), stop=Stop.ENV, reward=0.5) for n in range(self.finished)}
        _, attempt = self.calls[-1]
        return [BegunGroup(ticket=TICKET, attempt=attempt, finished=finished)]

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, begun: BegunGroup | None) -> Group:
        self.begun.append(begun)
        return await super().run_group(ticket, samples, attempt, begun)


def test_a_group_goes_on_in_its_second_attempt_with_what_the_first_left() -> None:
    async def story() -> tuple[BegunGroup, Group, Interrupted]:
        pool = await pool_of([Interrupted(3), Interrupted(held=True, finished=1)], retries=1)
        playing = asyncio.create_task(pool.run_group(TICKET, 4))
        await settle()
        (left,) = await pool.groups_in_flight()
        playing.cancel()
        await asyncio.wait([playing])
        worker = Interrupted()
        return left, await (await pool_of([worker], retries=1)).run_group(TICKET, 4, left), worker

    left, group, worker = asyncio.run(story())
    assert left.before is not None
    assert (left.attempt, left.finished[0].reward, len(left.before.trajectories)) == (1, 0.5, 1)
    assert worker.calls == [(3, 1)]
    (handed,) = worker.begun
    assert handed is not None
    assert handed.finished == left.finished
    assert (len(group.trajectories), len(group.failed), len(group.retried)) == (4, 0, 3)


def test_a_worker_that_died_leaves_what_was_known_of_its_groups() -> None:
    class Dead(Interrupted):
        async def groups_in_flight(self) -> list[BegunGroup]:
            raise WorkerDied("killed")

    async def story() -> tuple[BegunGroup, BegunGroup]:
        given = BegunGroup(ticket=TICKET, attempt=0, unfinished={2: NOTHING})
        pool = await pool_of([Dead(held=True)], retries=1)
        playing = asyncio.create_task(pool.run_group(TICKET, 4, given))
        await settle()
        (left,) = await pool.groups_in_flight()
        playing.cancel()
        await asyncio.wait([playing])
        return given, left

    given, left = asyncio.run(story())
    assert left == given


def test_without_retries_a_failure_is_final() -> None:
    group, calls = run([1, 0], retries=0)
    assert calls == [[(4, 0)], []]
    assert (len(group.failed), len(group.retried)) == (1, 0)


def test_a_prompt_that_is_too_long_is_not_tried_again() -> None:
    worker = Worker(2, FailureKind.PROMPT_TOO_LONG)

    async def work() -> Group:
        return await (await pool_of([worker], retries=3)).run_group(TICKET, 4)

    group = asyncio.run(work())
    assert worker.calls == [(4, 0)]
    assert (len(group.trajectories), len(group.failed), group.retried) == (2, 2, ())


def test_groups_go_to_the_worker_with_the_fewest_in_flight() -> None:
    async def balance() -> list[int]:
        slow, quick = Worker(held=True), Worker(held=True)
        pool = await pool_of([slow, quick])
        first = [asyncio.create_task(pool.run_group(TICKET, 1)) for _ in range(4)]
        await settle()
        running = [slow.running, quick.running]
        quick.released.set()  # it is free again, and gets all that come
        await settle()
        await asyncio.gather(*(pool.run_group(TICKET, 1) for _ in range(2)))
        slow.released.set()
        await asyncio.gather(*first)
        return [*running, len(slow.calls), len(quick.calls)]

    assert asyncio.run(balance()) == [2, 2, 2, 4]


def test_a_group_that_is_given_up_is_cancelled_in_its_worker_and_leaves_it_free() -> None:
    async def give_up() -> tuple[int, int, list[int]]:
        workers = [Worker(held=True), Worker(held=True)]
        pool = await pool_of(workers, retries=3)
        given_up = asyncio.create_task(pool.run_group(TICKET, 1))
        await settle()
        given_up.cancel()
        await asyncio.wait([given_up])
        for worker in workers:
            worker.released.set()
        await pool.run_group(TICKET, 1)  # the first worker counts as free: the group comes to it again
        return workers[0].cancelled, workers[0].running, [len(worker.calls) for worker in workers]

    assert asyncio.run(give_up()) == (1, 0, [2, 0])


def test_weights_go_to_every_worker_whole_to_one_that_lacks_the_base_and_all_confirm_the_version() -> None:
    workers = [Worker(), Worker()]
    workers[1].lacks_base = True

    async def work() -> WeightVersion:
        return await (await pool_of(workers)).load_weights(empty_push(7, nbytes=64))

    assert asyncio.run(work()) == WeightVersion(step=7)
    assert not workers[1].lacks_base


def test_every_worker_reads_a_checkpoint_and_all_confirm_its_version() -> None:
    async def work() -> tuple[WeightVersion, Path | None]:
        pool = await pool_of([Worker(), Worker()])
        confirmed = await pool.load_checkpoint(Path("model"), WeightVersion(step=7))
        return confirmed, pool.model

    assert asyncio.run(work()) == (WeightVersion(step=7), Path("model"))


def test_bare_turns_are_shared_among_the_workers() -> None:
    async def work() -> int:
        return await (await pool_of([Worker(), Worker()])).sample_bare([(1,), (2,), (3,)], max_tokens=5)

    assert asyncio.run(work()) == 15


def test_engine_statistics_are_those_of_all_workers() -> None:
    async def work() -> tuple[int, float, float, int]:
        stats = await (await pool_of([Worker(), Worker()])).engine_stats()
        return stats.passes, stats.running, stats.cache_use, stats.sampled_tokens

    assert asyncio.run(work()) == (4, 6.0, 0.5, 20)

"""The pool of rollout workers, driven with plain objects: who gets a group, what is tried again, and what a stop ends."""

import asyncio
from pathlib import Path

from pushes import empty_push

from envs.core.env_ref import EnvRef
from envs.core.pulse import WorkerDied
from envs.core.task import Task
from rollout.engines.protocol import EngineStats
from rollout.episodes.begun import BegunEpisode, BegunGroup
from rollout.episodes.pool import RolloutPool
from rollout.trajectory import NO_TIME, Failure, FailureKind, Group, Stop, Ticket, Trajectory, WeightVersion
from rollout.weights.delivery import Offered
from rollout.weights.manifest import WeightManifest, WholeWeightsNeeded

TASK = Task(env=EnvRef(name="math"), key="1", messages=({"role": "user", "content": "?"},), spec={})
NOTHING = BegunEpisode(turns=(), turn=None, seconds=0.0, times=NO_TIME)
TICKET = Ticket(number=3, task=TASK, admitted=WeightVersion(step=0))


class Worker:
    """A rollout worker whose first episodes of every group fail, and that answers at once or when it is told to."""

    def __init__(self, failures: int = 0, kind: FailureKind = FailureKind.SANDBOX, *, held: bool = False) -> None:
        self.failures = failures
        self.kind = kind
        self.calls: list[tuple[int, int]] = []
        self.running = self.cancelled = 0
        self.lacks_base = False
        self.released = asyncio.Event()
        if not held:
            self.released.set()

    async def partials(self) -> list[BegunGroup]:
        return []

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, begun: BegunGroup | None) -> Group:
        self.calls.append((samples, attempt))
        self.running += 1
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        failure = Failure(kind=self.kind, message="lost")
        lost = Trajectory(task=ticket.task, turns=(), stop=Stop.FAILURE, failure=failure)
        right = Trajectory(task=ticket.task, turns=(), stop=Stop.ENV, reward=1.0)
        failed = min(self.failures, samples)
        return Group(ticket=ticket, trajectories=(right,) * (samples - failed), failed=(lost,) * failed)

    async def sample_bare(self, prompts: list[tuple[int, ...]], max_tokens: int) -> int:
        return max_tokens * len(prompts)

    async def engine_stats(self) -> EngineStats:
        return EngineStats(passes=2, running=3.0, cache_use=0.5, sampled_tokens=10)

    async def isolation(self) -> str:
        return "level 2"

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        if self.lacks_base:
            self.lacks_base = False
            raise WholeWeightsNeeded("no base")
        return manifest.weight_version

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        return version

    async def close(self) -> None:
        self.released.set()


def run(failures: list[int], *, retries: int) -> tuple[Group, list[list[tuple[int, int]]]]:
    workers = [Worker(count) for count in failures]
    group = asyncio.run(RolloutPool(workers, retries=retries).run_group(TICKET, 4))
    return group, [worker.calls for worker in workers]


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

    async def partials(self) -> list[BegunGroup]:
        finished = {n: Trajectory(task=TASK, turns=(), stop=Stop.ENV, reward=0.5) for n in range(self.finished)}
        _, attempt = self.calls[-1]
        return [BegunGroup(ticket=TICKET, attempt=attempt, finished=finished)]

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, begun: BegunGroup | None) -> Group:
        self.begun.append(begun)
        return await super().run_group(ticket, samples, attempt, begun)


def test_a_group_goes_on_in_its_second_attempt_with_what_the_first_left() -> None:
    async def story() -> tuple[BegunGroup, Group, Interrupted]:
        pool = RolloutPool([Interrupted(3), Interrupted(held=True, finished=1)], retries=1)
        playing = asyncio.create_task(pool.run_group(TICKET, 4))
        await settle()
        (left,) = await pool.partials()
        playing.cancel()
        await asyncio.wait([playing])
        worker = Interrupted()
        return left, await RolloutPool([worker], retries=1).run_group(TICKET, 4, left), worker

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
        async def partials(self) -> list[BegunGroup]:
            raise WorkerDied("killed")

    async def story() -> tuple[BegunGroup, BegunGroup]:
        given = BegunGroup(ticket=TICKET, attempt=0, unfinished={2: NOTHING})
        pool = RolloutPool([Dead(held=True)], retries=1)
        playing = asyncio.create_task(pool.run_group(TICKET, 4, given))
        await settle()
        (left,) = await pool.partials()
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
    group = asyncio.run(RolloutPool([worker], retries=3).run_group(TICKET, 4))
    assert worker.calls == [(4, 0)]
    assert (len(group.trajectories), len(group.failed), group.retried) == (2, 2, ())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_groups_go_to_the_worker_with_the_fewest_in_flight() -> None:
    async def balance() -> list[int]:
        slow, quick = Worker(held=True), Worker(held=True)
        pool = RolloutPool([slow, quick], retries=0)
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
        pool = RolloutPool(workers, retries=3)
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
    assert asyncio.run(RolloutPool(workers, retries=0).load_weights(empty_push(7, nbytes=64))) == WeightVersion(step=7)
    assert not workers[1].lacks_base


def test_every_worker_reads_a_checkpoint_and_all_confirm_its_version() -> None:
    pool = RolloutPool([Worker(), Worker()], retries=0)
    assert asyncio.run(pool.load_checkpoint(Path("model"), WeightVersion(step=7))) == WeightVersion(step=7)


def test_bare_turns_are_shared_among_the_workers() -> None:
    assert asyncio.run(RolloutPool([Worker(), Worker()], retries=0).sample_bare([(1,), (2,), (3,)], max_tokens=5)) == 15


def test_engine_statistics_are_those_of_all_workers() -> None:
    stats = asyncio.run(RolloutPool([Worker(), Worker()], retries=0).engine_stats())
    assert (stats.passes, stats.running, stats.cache_use, stats.sampled_tokens) == (4, 6.0, 0.5, 20)

"""The fleet of rollout workers: failed episodes are tried again, on another worker where there is one."""

import asyncio

from envs.core.task import Task
from orchestrator.cluster.ray_cluster import RolloutPool
from rollout.trajectory import Failure, FailureKind, Group, Stop, Ticket, Trajectory, WeightVersion

TASK = Task(env="math", key="1", messages=({"role": "user", "content": "?"},), spec={})
TICKET = Ticket(number=3, task=TASK, admitted=WeightVersion(step=0))


class RunGroup:
    """The `run_group` of an actor whose first episodes of every group fail; keeps its calls."""

    def __init__(self, failures: int, kind: FailureKind = FailureKind.SANDBOX) -> None:
        self.failures = failures
        self.kind = kind
        self.calls: list[tuple[int, int]] = []

    async def remote(self, ticket: Ticket, samples: int, attempt: int) -> Group:
        self.calls.append((samples, attempt))
        failure = Failure(kind=self.kind, message="lost")
        lost = Trajectory(task=ticket.task, turns=(), stop=Stop.FAILURE, failure=failure)
        right = Trajectory(task=ticket.task, turns=(), stop=Stop.ENV, reward=1.0)
        failed = min(self.failures, samples)
        return Group(ticket=ticket, trajectories=(right,) * (samples - failed), failed=(lost,) * failed)


class Worker:
    """What the fleet sees of an actor."""

    def __init__(self, failures: int) -> None:
        self.run_group = RunGroup(failures)


def run(failures: list[int], *, retries: int) -> tuple[Group, list[list[tuple[int, int]]]]:
    workers = [Worker(count) for count in failures]
    group = asyncio.run(RolloutPool(workers, retries=retries).run_group(TICKET, 4))
    return group, [worker.run_group.calls for worker in workers]


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


def test_without_retries_a_failure_is_final() -> None:
    group, calls = run([1, 0], retries=0)
    assert calls == [[(4, 0)], []]
    assert (len(group.failed), len(group.retried)) == (1, 0)


def test_a_prompt_that_is_too_long_is_not_tried_again() -> None:
    worker = Worker(2)
    worker.run_group.kind = FailureKind.PROMPT_TOO_LONG
    group = asyncio.run(RolloutPool([worker], retries=3).run_group(TICKET, 4))
    assert worker.run_group.calls == [(4, 0)]
    assert (len(group.trajectories), len(group.failed), group.retried) == (2, 2, ())

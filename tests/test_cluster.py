"""The fleet of rollout workers on a real Ray: failed episodes are tried again, on another worker where there is one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from envs.task import Task
from orchestrator.cluster import Fleet, start_ray, stop_ray
from rollout.trajectory import Failure, FailureKind, Group, Stop, Ticket, Trajectory, WeightVersion

TASK = Task(env="math", key="1", messages=({"role": "user", "content": "?"},), spec={})
TICKET = Ticket(number=3, task=TASK, admitted=WeightVersion(step=0))


class Worker:
    """Fails the first episodes of every group, as many as it is told, and counts its calls."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls: list[tuple[int, int]] = []

    def run_group(self, ticket: Ticket, samples: int, attempt: int) -> Group:
        self.calls.append((samples, attempt))
        failure = Failure(kind=FailureKind.SANDBOX, message="lost")
        lost = Trajectory(task=ticket.task, turns=(), stop=Stop.FAILURE, failure=failure)
        right = Trajectory(task=ticket.task, turns=(), stop=Stop.ENV, reward=1.0)
        failed = min(self.failures, samples)
        return Group(ticket=ticket, trajectories=(right,) * (samples - failed), failed=(lost,) * failed)

    def said(self) -> list[tuple[int, int]]:
        return self.calls


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))  # the actors import this file
        start_ray(slots=2, min_sandbox_level=2)
        yield
        stop_ray()


def run(failures: list[int], *, retries: int) -> tuple[Group, list[list[tuple[int, int]]]]:
    workers = [ray.remote(Worker).options(num_cpus=0).remote(count) for count in failures]
    group = asyncio.run(Fleet(workers, retries=retries).run_group(TICKET, 4))
    return group, ray.get([worker.said.remote() for worker in workers], timeout=30)


def test_failed_episodes_are_tried_again_on_another_worker() -> None:
    group, calls = run([3, 0], retries=1)
    assert calls == [[(4, 0)], [(3, 1)]]
    assert (group.rewards_G, group.failed, group.retried) == ([1.0] * 4, (), 3)


def test_a_single_worker_tries_again_itself() -> None:
    group, calls = run([1], retries=1)
    assert calls == [[(4, 0), (1, 1)]]
    assert (len(group.trajectories), len(group.failed), group.retried) == (3, 1, 1)


def test_what_fails_everywhere_stays_a_failure_and_never_a_zero() -> None:
    group, calls = run([4, 4], retries=2)
    assert calls == [[(4, 0), (4, 2)], [(4, 1)]]
    assert (group.rewards_G, len(group.failed), group.retried) == ([], 4, 8)


def test_without_retries_a_failure_is_final() -> None:
    group, calls = run([1, 0], retries=0)
    assert calls == [[(4, 0)], []]
    assert (len(group.failed), group.retried) == (1, 0)

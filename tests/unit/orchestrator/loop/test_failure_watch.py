"""The watch over failures: a share of all episodes whatever the size of a group, and the name of what is at fault."""

import asyncio

import pytest

from temper.envs.core.task import EnvRef, Task
from temper.orchestrator.loop.watches import FailureWatch, TooManyFailures
from temper.rollout.trajectory import Failure, FailureKind, Group, Stop, Ticket, Trajectory, WeightVersion

TASK = Task(env=EnvRef(name="math"), key="k", messages=({"role": "user", "content": "?"},), spec={})
ENGINE = Failure(kind=FailureKind.ENGINE, message="EngineFault: the engine is dead")
ENVIRONMENT = Failure(kind=FailureKind.ENVIRONMENT, message="ConnectionError: refused")


def group(right: int, *, failed: tuple[Failure, ...] = (), retried: tuple[Failure, ...] = ()) -> Group:
    return Group(
        ticket=Ticket(number=0, task=TASK, admitted=WeightVersion(step=0)),
        trajectories=tuple(Trajectory(task=TASK, turns=(), stop=Stop.ENV, reward=1.0) for _ in range(right)),
        failed=tuple(Trajectory(task=TASK, turns=(), stop=Stop.FAILURE, failure=failure) for failure in failed),
        retried=retried,
    )


def watch(highest: float = 0.5) -> FailureWatch:
    return FailureWatch(highest, setting="rl.max_failures")


def test_a_large_group_counts_as_a_whole() -> None:
    few = watch()
    few.add(group(128, retried=(ENVIRONMENT,) * 33))  # 20 % of 161 episodes
    few.conclude()
    with pytest.raises(TooManyFailures, match="129 .* 257"):
        watch().add(group(128, retried=(ENVIRONMENT,) * 129))


@pytest.mark.parametrize("size", [1, 8, 24, 40, 64, 200])
def test_the_same_share_of_failures_halts_at_any_size_of_a_group(size: int) -> None:
    for share, halts in ((0.4, False), (0.6, True)):
        seen, failed = watch(), 0
        try:
            for number in range(1, 400 // size + 2):
                due = round(share * size * number) - failed
                seen.add(group(size - due, failed=(ENVIRONMENT,) * due))
                failed += due
        except TooManyFailures:
            assert halts
        else:
            assert not halts


def test_the_engine_is_named_where_the_engine_is_dead_and_the_environment_where_it_is_down() -> None:
    with pytest.raises(TooManyFailures, match=r"engine.*'math'.*engine 63, environment 1"):
        watch().add(group(0, failed=(ENGINE,) * 63 + (ENVIRONMENT,)))
    with pytest.raises(TooManyFailures, match=r"^environment 'math'.*rl\.max_failures=0\.5.*refused"):
        watch().add(group(0, failed=(ENVIRONMENT,) * 63, retried=(ENGINE,)))


def test_fewer_episodes_are_judged_when_no_more_will_come() -> None:
    seen = watch()
    asyncio.run(seen.on(asyncio.sleep(0, group(1, failed=(ENGINE,) * 3))))
    with pytest.raises(TooManyFailures, match="3 .* 4 "):
        seen.conclude()


def test_old_failures_are_forgotten() -> None:
    seen = watch()
    seen.add(group(0, failed=(ENVIRONMENT,) * 8))
    for _ in range(8):
        seen.add(group(8))
    seen.add(group(33, failed=(ENVIRONMENT,) * 31))
    seen.conclude()

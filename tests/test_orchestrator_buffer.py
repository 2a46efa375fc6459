"""The buffer: no group beyond its lag, nothing lost, no step without an end."""

import asyncio
import json
import random
from functools import partial

import pytest

from envs.core.env_ref import EnvRef
from envs.core.task import Task
from learner.losses.advantages import has_signal
from orchestrator.buffer import Buffer, Occupancy, SlotState, VersionCell
from orchestrator.loop import StepReport
from orchestrator.mixture import Mixture
from orchestrator.stages.step_metrics import step_metrics
from orchestrator.step_times import Phase, StepTimes
from rollout.engines.protocol import EngineStats
from rollout.trajectory import Group, Stop, Ticket, Trajectory, WeightVersion


class Numbered:
    """A source whose tasks are numbers."""

    def task(self, index: int) -> Task:
        return Task(
            env=EnvRef(name="math"), key=str(index), messages=({"role": "user", "content": str(index)},), spec={}
        )


def mixture() -> Mixture:
    return Mixture({"math": Numbered()}, {"math": 1.0})


def group(ticket: Ticket, rewards: list[float]) -> Group:
    answers = tuple(Trajectory(task=ticket.task, turns=(), stop=Stop.ENV, reward=reward) for reward in rewards)
    return Group(ticket=ticket, trajectories=answers)


async def train(buffer: Buffer, *, steps: int, seed: int) -> list[tuple[int, list[Group]]]:
    """Steps of a learner while a producer finishes admitted groups in random order; (version, groups) of each step."""
    rng, version, source = random.Random(seed), VersionCell(WeightVersion(step=0)), mixture()

    async def finish(ticket: Ticket) -> None:
        for _ in range(rng.choice((0, 0, 1, 5, 40))):
            await asyncio.sleep(0)
        await buffer.put(group(ticket, [0.0, 1.0]))

    async def produce() -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(finish(await buffer.admit(source, version)))

    producer = asyncio.create_task(produce())
    done = []
    for step in range(1, steps + 1):
        done.append((version.value.step, await buffer.take(version.value)))
        await asyncio.sleep(0)
        version.value = WeightVersion(step=step)
        await buffer.release()
    producer.cancel()
    return done


@pytest.mark.parametrize("max_lag", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_no_group_is_trained_more_than_max_lag_versions_after_its_admission(max_lag: int, seed: int) -> None:
    buffer = Buffer(groups_per_step=4, max_lag=max_lag, max_drops=0)
    lags = [
        version - g.ticket.admitted.step
        for version, groups in asyncio.run(train(buffer, steps=30, seed=seed))
        for g in groups
    ]
    assert len(lags) == 30 * 4
    assert max(lags) <= max_lag


@pytest.mark.parametrize("max_lag", [0, 2])
def test_every_draw_is_trained_once_or_still_pending(max_lag: int) -> None:
    buffer = Buffer(groups_per_step=3, max_lag=max_lag, max_drops=0)
    done = asyncio.run(train(buffer, steps=10, seed=1))
    trained = [int(g.ticket.task.key) for _, groups in done for g in groups]
    pending = [draw["index"] for draw in buffer.state()["pending"]]
    assert sorted(trained + pending) == list(range(len(trained) + len(pending)))


def test_a_restored_buffer_admits_what_was_pending_first() -> None:
    async def story() -> list[str]:
        version, source = VersionCell(WeightVersion(step=0)), mixture()
        first = Buffer(groups_per_step=2, max_lag=1, max_drops=0)
        tickets = [await first.admit(source, version) for _ in range(4)]
        await first.put(group(tickets[1], [0.0, 1.0]))
        await first.put(group(tickets[3], [0.0, 1.0]))
        await first.take(version.value)
        await first.release()
        second = Buffer(groups_per_step=2, max_lag=1, max_drops=0)
        second.restore(first.state())
        again = [await second.admit(source, version) for _ in range(3)]
        assert [t.number for t in again] == [4, 5, 6]
        return [t.task.key for t in again]

    assert asyncio.run(story()) == ["0", "2", "4"]


def test_a_step_waits_for_groups_that_are_due_and_takes_the_oldest_that_are_ready() -> None:
    async def story() -> list[str]:
        version, source, said = VersionCell(WeightVersion(step=0)), mixture(), []
        buffer = Buffer(groups_per_step=2, max_lag=1, max_drops=0)
        a, b, c, d = [await buffer.admit(source, version) for _ in range(4)]
        for ticket in (b, c):
            await buffer.put(group(ticket, [0.0, 1.0]))
        said.append(keys(await buffer.take(version.value)))
        version.value = WeightVersion(step=1)
        await buffer.release()
        for ticket in [await buffer.admit(source, version) for _ in range(2)]:
            await buffer.put(group(ticket, [0.0, 1.0]))
        taking = asyncio.create_task(buffer.take(version.value))
        for due in (a, d):  # two are ready, but these were admitted a version before
            await asyncio.sleep(0.001)
            said.append("done" if taking.done() else "waits")
            await buffer.put(group(due, [0.0, 1.0]))
        return [*said, keys(await taking)]

    def keys(groups: list[Group]) -> str:
        return " ".join(g.ticket.task.key for g in groups)

    assert asyncio.run(story()) == ["1 2", "waits", "waits", "0 3"]


def test_occupancy_is_the_mean_number_of_slots_in_each_state_since_the_last_release() -> None:
    seconds = [100.0]

    async def story() -> list[Occupancy]:
        version, source = VersionCell(WeightVersion(step=0)), mixture()
        buffer = Buffer(groups_per_step=2, max_lag=1, max_drops=0, clock=lambda: seconds[-1])
        tickets = [await buffer.admit(source, version) for _ in range(3)]
        seconds.append(101.0)
        for ticket in tickets[:2]:
            await buffer.put(group(ticket, [0.0, 1.0]))
        seconds.append(102.0)
        await buffer.take(version.value)
        seconds.append(104.0)
        found = [buffer.occupancy()]
        await buffer.release()
        seconds.append(109.0)
        return [*found, buffer.occupancy()]

    first, second = asyncio.run(story())
    assert first.held == {
        SlotState.MAKING: 0.0,
        SlotState.GENERATING: (3 * 1 + 1 * 3) / 4,
        SlotState.READY: 2 * 1 / 4,
        SlotState.TRAINING: 2 * 2 / 4,
    }
    assert (first.slots, first.free) == (4, 1.0)
    assert (second.held[SlotState.GENERATING], second.free) == (1.0, 3.0)


def test_groups_without_signal_are_replaced_until_the_limit_and_then_kept() -> None:
    async def story() -> tuple[int, int]:
        version, source = VersionCell(WeightVersion(step=0)), mixture()
        buffer = Buffer(groups_per_step=2, max_lag=0, max_drops=3)
        for _ in range(5):
            await buffer.put(group(await buffer.admit(source, version), [1.0, 1.0]))
        return len(await buffer.take(version.value)), buffer.dropped.no_signal

    assert asyncio.run(story()) == (2, 3)


def test_the_advantage_says_which_groups_teach_anything() -> None:
    async def dropped(kind: str) -> int:
        version, source = VersionCell(WeightVersion(step=0)), mixture()
        buffer = Buffer(groups_per_step=1, max_lag=0, max_drops=9, signal=partial(has_signal, kind=kind))
        await buffer.put(group(await buffer.admit(source, version), [1.0, 1.0]))
        return buffer.dropped.no_signal

    assert asyncio.run(dropped("rloo")) == 1
    assert asyncio.run(dropped("reinforce_pp")) == 0  # compared with the whole batch


def test_a_group_with_one_answer_left_is_dropped_as_failed() -> None:
    async def story() -> int:
        version, source = VersionCell(WeightVersion(step=0)), mixture()
        buffer = Buffer(groups_per_step=1, max_lag=0, max_drops=0)
        await buffer.put(group(await buffer.admit(source, version), [1.0]))
        return buffer.dropped.failed

    assert asyncio.run(story()) == 1


def test_rewards_of_dropped_groups_are_measured_each_once() -> None:
    async def story() -> list[dict[str, float]]:
        version, source = VersionCell(WeightVersion(step=0)), mixture()
        buffer = Buffer(groups_per_step=1, max_lag=0, max_drops=8)
        steps = []
        for rewards in ([[1.0, 1.0], [1.0], [1.0, 1.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]):
            for answers in rewards:
                await buffer.put(group(await buffer.admit(source, version), answers))
            groups, dropped = await buffer.take(version.value), buffer.dropped
            report = StepReport(
                step=1,
                groups=groups,
                dropped=dropped,
                learner={},
                lag_max=0,
                pushed_bytes=0,
                pushed_share=0.0,
                times=StepTimes(seconds={Phase.WAIT: 1.0}),
                occupancy=buffer.occupancy(),
                engine=EngineStats(),
            )
            steps.append(step_metrics(report))
            await buffer.release()
        return steps

    first, second = asyncio.run(story())
    assert [step["env/math/reward"] for step in (first, second)] == pytest.approx([6 / 7, 1 / 4])
    assert [step["env/math/reward_trained"] for step in (first, second)] == [0.5, 0.5]
    assert [step["env/math/groups"] for step in (first, second)] == [4.0, 2.0]
    assert [step["env/math/groups_trained"] for step in (first, second)] == [1.0, 1.0]


def test_shares_hold_over_any_stretch_of_draws_and_continue_after_a_restart() -> None:
    sources = {env: Numbered() for env in ("a", "b", "c")}
    shares = {"a": 3.0, "b": 2.0, "c": 1.0}
    straight = Mixture(sources, shares)
    draws = [straight.draw() for _ in range(60)]
    for end in range(1, 61):
        counts = {env: sum(d.env == env for d in draws[:end]) for env in shares}
        assert all(abs(counts[env] - end * share / 6) <= 1 for env, share in shares.items())
    first, second = Mixture(sources, shares), Mixture(sources, shares)
    head = [first.draw() for _ in range(17)]
    second.restore(first.state())
    assert head + [second.draw() for _ in range(43)] == draws


def test_shares_that_change_hold_from_there_on_and_no_task_comes_again() -> None:
    sources = {env: Numbered() for env in ("a", "b", "c")}
    first = Mixture(sources, {"a": 1.0, "b": 1.0})
    head = [first.draw() for _ in range(40)]
    second = Mixture(sources, {"a": 1.0, "c": 1.0})
    second.restore(json.loads(json.dumps(first.state())))
    tail = [second.draw() for _ in range(40)]
    assert [sum(draw.env == env for draw in tail[:10]) for env in ("a", "c")] == [5, 5]
    third = Mixture(sources, {"a": 1.0, "b": 1.0})
    third.restore(json.loads(json.dumps(second.state())))
    drawn = [*head, *tail, *(third.draw() for _ in range(10))]
    assert len(set(drawn)) == len(drawn)

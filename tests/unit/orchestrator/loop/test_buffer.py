"""The buffer: no group exceeds its lag, no ticket is lost, every step ends, and slot counts follow each change."""

import asyncio
import itertools
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, cast

import pytest
from support.turns import report_of

from temper.envs.core.errors import Failure, FailureKind
from temper.envs.core.task import EnvRef, Task
from temper.envs.core.thinking_mode import OFF, ThinkingMix
from temper.orchestrator.loop.buffer import (
    MISSING,
    Buffer,
    BufferState,
    HeldGroup,
    HeldSlots,
    Occupancy,
    Slot,
    SlotState,
    VersionCell,
)
from temper.orchestrator.loop.mixture import Draw, Mixture
from temper.orchestrator.loop.ticket_log import TicketEvent, Totals
from temper.orchestrator.run.loop_state import held_group_lines
from temper.orchestrator.stages.rl import has_advantage
from temper.orchestrator.stages.step_metrics import step_metrics
from temper.rollout.codec import from_json, to_json
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, WeightVersion


class Numbered:
    def task(self, index: int) -> Task:
        return Task(
            env=EnvRef(name="math"), key=str(index), messages=({"role": "user", "content": str(index)},), spec={}
        )


def mixture() -> Mixture:
    return Mixture({"math": Numbered()}, {"math": 1.0})


def group(ticket: Ticket, rewards: list[float]) -> Group:
    answers = tuple(Trajectory(task=ticket.task, turns=(), stop=Stop.ENV, reward=reward) for reward in rewards)
    return Group(ticket=ticket, trajectories=answers)


async def settle() -> None:
    """Let all ready tasks run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def train(
    buffer: Buffer, *, steps: int, seed: int, loads: tuple[int, ...] = (0,), signal: float = 1.0
) -> list[tuple[int, list[Group]]]:
    """Run a learner while a producer finishes admitted groups in random order. Return (version, groups) per step.

    Each push takes a random entry of `loads` in rounds and overlaps the next step. A share `signal` of the groups has a
    nonzero advantage.
    """
    rng, version, source = random.Random(seed), VersionCell(WeightVersion(step=0)), mixture()

    async def finish(ticket: Ticket) -> None:
        for _ in range(rng.choice((0, 0, 1, 5, 40, 200))):
            await asyncio.sleep(0)
        await buffer.put(group(ticket, [0.0, 1.0] if rng.random() < signal else [1.0, 1.0]))

    async def load(step: int) -> None:
        for _ in range(rng.choice(loads)):
            await asyncio.sleep(0)
        version.value = WeightVersion(step=step)
        await buffer.release(step)

    async def produce() -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(finish(await buffer.admit(source, version)))

    producer, loading = asyncio.create_task(produce()), asyncio.create_task(asyncio.sleep(0))
    done = []
    for step in range(1, steps + 1):
        done.append((version.learnt.step, await buffer.take(version.learnt)))
        for _ in range(rng.choice((1, 20))):
            await asyncio.sleep(0)
        await buffer.record_trained(step)
        version.learnt = WeightVersion(step=step)
        await loading
        loading = asyncio.create_task(load(step))
        if loads == (0,):
            await loading
    producer.cancel()
    loading.cancel()
    return done


LOADED, LATE = (0,), (0, 3, 30, 90)
LAGS = [(0, None), (1, None), (2, None), (3, None), (1, 5), (3, 5), (3, 9)]


@pytest.mark.parametrize(
    ("max_lag", "slots", "loads"), [(*lag, LOADED) for lag in LAGS] + [(*lag, LATE) for lag in LAGS[1:]]
)
@pytest.mark.parametrize("seed", range(3))
def test_no_group_is_trained_more_than_max_lag_versions_after_its_admission(
    max_lag: int, slots: int | None, seed: int, loads: tuple[int, ...]
) -> None:
    """A step may begin before the engines load the previous step's weights."""
    buffer = Buffer(groups_per_step=4, max_lag=max_lag, max_replaced_groups=10**6, slots=slots)
    trained = asyncio.run(train(buffer, steps=40, seed=seed, loads=loads, signal=1.0 if loads == LOADED else 0.5))
    lags = [version - g.ticket.admitted.step for version, groups in trained for g in groups]
    assert len(lags) == 40 * 4
    assert max(lags) <= max_lag
    assert fmean(lags) <= buffer.capacity / 4 - 1


@pytest.mark.parametrize(("max_lag", "slots"), [(0, None), (2, None), (2, 4)])
def test_every_draw_is_trained_once_or_still_pending(max_lag: int, slots: int | None) -> None:
    buffer = Buffer(groups_per_step=3, max_lag=max_lag, max_replaced_groups=0, slots=slots)
    done = asyncio.run(train(buffer, steps=10, seed=1))
    trained = [int(g.ticket.task.key) for _, groups in done for g in groups]
    pending = [ticket.draw.index for ticket in buffer.state().tickets]
    assert sorted(trained + pending) == list(range(len(trained) + len(pending)))


def again(
    buffer: Buffer, state: BufferState, *, was: int = 1, now: int = 1, envs: tuple[str, ...] = ("math",)
) -> set[int]:
    saved = [from_json(HeldGroup, line) for line in held_group_lines(state.groups).splitlines()]
    groups = tuple(replace(one, group=one.group.with_task(mixture().task(one.draw))) for one in saved)
    read = replace(from_json(BufferState, to_json(replace(state, groups=()))), groups=groups)
    assert read == state
    return buffer.restore(read, was=WeightVersion(step=was), now=WeightVersion(step=now), envs=envs)


async def half_done() -> BufferState:
    """A buffer at version 1: ticket 1 is trained; 0, 2 and 5 are in flight; 3 is finished; 4 was dropped."""
    version, source = VersionCell(WeightVersion(step=0)), mixture()
    buffer = Buffer(groups_per_step=1, max_lag=3, max_replaced_groups=9)
    tickets = [await buffer.admit(source, version) for _ in range(4)]
    await buffer.put(group(tickets[1], [0.0, 1.0]))
    await buffer.put(group(tickets[3], [0.0, 1.0]))
    await buffer.take(version.value)
    await buffer.record_trained(1)
    version.value = WeightVersion(step=1)
    await buffer.release(1)
    late = await buffer.admit(source, version)
    await buffer.put(group(tickets[0], [0.0, 1.0]))
    await buffer.put(group(late, [1.0, 1.0]))
    await buffer.admit(source, version)
    return buffer.state()


def test_a_restored_buffer_hands_out_the_same_tickets_and_keeps_what_is_finished() -> None:
    async def story() -> None:
        state, version, source = await half_done(), VersionCell(WeightVersion(step=6)), mixture()
        assert state.totals == Totals(issued=6, trained=1, dropped=1, in_flight=4)
        source.restore({"drawn": {"math": 6}, "before": {"math": 0}, "shares": {"math": 1.0}})
        buffer = Buffer(groups_per_step=1, max_lag=3, max_replaced_groups=9)
        assert again(buffer, state, now=6) == {0, 2, 3, 5}
        assert buffer.state().tickets == tuple(replace(held, admitted=held.admitted + 5) for held in state.tickets)
        assert (buffer.dropped.zero_advantage, [g.ticket.number for g in buffer.dropped.groups]) == (1, [4])
        handed = [await buffer.admit(source, version) for _ in range(2)]
        assert [(t.number, t.task.key, t.admitted.step) for t in handed] == [(2, "2", 5), (5, "5", 6)]
        assert [g.ticket.number for g in await buffer.take(version.value)] == [0]
        await buffer.record_trained(2)
        await buffer.release(2)
        assert (await buffer.admit(source, version)).number == 6
        assert buffer.totals() == Totals(issued=7, trained=2, dropped=1, in_flight=4)

    asyncio.run(story())


def test_tickets_that_would_come_too_late_under_new_settings_begin_anew_with_their_numbers() -> None:
    async def story() -> None:
        state, version, source = await half_done(), VersionCell(WeightVersion(step=1)), mixture()
        buffer = Buffer(groups_per_step=1, max_lag=1, max_replaced_groups=9)
        assert again(buffer, state) == {0}  # due now; ticket 2 is equally old and would wait a step
        ticket = await buffer.admit(source, version)
        assert (ticket.number, ticket.admitted.step) == (2, 1)
        assert [held.number for held in buffer.state().tickets] == [0, 2, 3, 5]
        for step, number in enumerate((0, 2, 3, 5), 1):
            assert [g.ticket.number for g in await buffer.take(version.value)] == [number]
            await buffer.record_trained(step)
            version.value = WeightVersion(step=step + 1)
            await buffer.release(step)
            assert buffer.totals().is_balanced
            following = await buffer.admit(source, version)
            await buffer.put(group(ticket, [0.0, 1.0]))
            ticket = following

    asyncio.run(story())


def test_tickets_without_a_slot_under_new_settings_wait_for_one_with_their_numbers() -> None:
    async def story() -> None:
        state, version, source = await half_done(), VersionCell(WeightVersion(step=1)), mixture()
        buffer = Buffer(groups_per_step=1, max_lag=3, max_replaced_groups=9, slots=2)
        assert again(buffer, state) == {0, 2}
        for step, number in enumerate((0, 2, 3, 5), 1):
            ticket = await buffer.admit(source, version)
            await buffer.put(group(ticket, [0.0, 1.0]))
            assert [g.ticket.number for g in await buffer.take(version.value)] == [number]
            await buffer.record_trained(step)
            version.value = WeightVersion(step=step + 1)
            await buffer.release(step)
            assert buffer.totals().is_balanced

    asyncio.run(story())


def test_tickets_of_an_environment_without_a_share_are_dropped() -> None:
    async def story() -> None:
        state, buffer = await half_done(), Buffer(groups_per_step=1, max_lag=3, max_replaced_groups=9)
        assert again(buffer, state, envs=("code",)) == set()
        assert buffer.totals() == Totals(issued=6, trained=1, dropped=5)

    asyncio.run(story())


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_which_groups_without_signal_are_dropped_does_not_depend_on_who_finishes_first(order: tuple[int, ...]) -> None:
    async def story() -> tuple[list[int], list[int]]:
        version, source = VersionCell(WeightVersion(step=0)), mixture()
        buffer = Buffer(groups_per_step=4, max_lag=0, max_replaced_groups=2)
        tickets = [await buffer.admit(source, version) for _ in range(4)]
        rewards = {0: [0.0, 1.0], 1: [1.0, 1.0], 2: [1.0, 1.0], 3: [0.0, 0.0]}
        for place in order:
            await buffer.put(group(tickets[place], rewards[place]))
        for _ in range(2):
            await buffer.put(group(await buffer.admit(source, version), [0.0, 1.0]))
        dropped = [g.ticket.number for g in buffer.dropped.groups]
        return sorted(dropped), [g.ticket.number for g in await buffer.take(version.value)]

    assert asyncio.run(story()) == ([1, 2], [0, 3, 4, 5])


def test_a_step_waits_for_groups_that_are_due_and_takes_the_oldest_that_are_ready() -> None:
    async def story() -> list[str]:
        version, source, said = VersionCell(WeightVersion(step=0)), mixture(), []
        buffer = Buffer(groups_per_step=2, max_lag=1, max_replaced_groups=0)
        a, b, c, d = [await buffer.admit(source, version) for _ in range(4)]
        for ticket in (b, c):
            await buffer.put(group(ticket, [0.0, 1.0]))
        said.append(keys(await buffer.take(version.value)))
        await buffer.record_trained(1)
        version.value = WeightVersion(step=1)
        await buffer.release(1)
        for ticket in [await buffer.admit(source, version) for _ in range(2)]:
            await buffer.put(group(ticket, [0.0, 1.0]))
        taking = asyncio.create_task(buffer.take(version.value))
        for due in (a, d):  # two groups are ready, but these have an older version
            await settle()
            said.append("done" if taking.done() else "waits")
            await buffer.put(group(due, [0.0, 1.0]))
        return [*said, keys(await taking)]

    def keys(groups: list[Group]) -> str:
        return " ".join(g.ticket.task.key for g in groups)

    assert asyncio.run(story()) == ["1 2", "waits", "waits", "0 3"]


def test_with_few_slots_steps_go_on_without_a_slow_group_until_it_is_due() -> None:
    async def story() -> list[str]:
        version, source, said = VersionCell(WeightVersion(step=0)), mixture(), []
        buffer = Buffer(groups_per_step=2, max_lag=2, max_replaced_groups=0, slots=3)
        slow = await buffer.admit(source, version)
        for step in (1, 2, 3):
            for ticket in [await buffer.admit(source, version) for _ in range(2)]:
                await buffer.put(group(ticket, [0.0, 1.0]))
            taking = asyncio.create_task(buffer.take(version.value))
            await settle()
            if not taking.done():
                said.append("waits")
                await buffer.put(group(slow, [0.0, 1.0]))
            said.append(" ".join(g.ticket.task.key for g in await taking))
            await buffer.record_trained(step)
            version.value = WeightVersion(step=step)
            await buffer.release(step)
        return said

    assert asyncio.run(story()) == ["1 2", "3 4", "waits", "0 5"]


def test_occupancy_is_the_mean_number_of_slots_in_each_state_since_it_was_asked_for_last() -> None:
    seconds = [100.0]

    async def story() -> list[Occupancy]:
        version, source = VersionCell(WeightVersion(step=0)), mixture()
        buffer = Buffer(groups_per_step=2, max_lag=1, max_replaced_groups=0, clock=lambda: seconds[-1])
        tickets = [await buffer.admit(source, version) for _ in range(3)]
        seconds.append(101.0)
        for ticket in tickets[:2]:
            await buffer.put(group(ticket, [0.0, 1.0]))
        seconds.append(102.0)
        await buffer.take(version.value)
        seconds.append(104.0)
        found = [buffer.occupancy()]
        await buffer.record_trained(1)
        await buffer.release(1)
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


@pytest.mark.parametrize(
    ("settings", "rewards", "dropped"),
    [
        ({"groups_per_step": 2, "max_replaced_groups": 3}, [[1.0, 1.0]] * 5, (3, 0)),  # the last two groups are used
        ({"has_advantage": partial(has_advantage, kind="rloo")}, [[1.0, 1.0]], (1, 0)),
        (
            {"has_advantage": partial(has_advantage, kind="reinforce_pp")},
            [[1.0, 1.0]],
            (0, 0),
        ),  # the baseline is the whole batch
        ({}, [[1.0]], (0, 1)),  # only one answer remains
    ],
)
def test_groups_that_teach_nothing_are_replaced(
    settings: dict[str, Any], rewards: list[list[float]], dropped: tuple[int, int]
) -> None:
    async def story() -> tuple[int, int]:
        version, source = VersionCell(WeightVersion(step=0)), mixture()
        buffer = Buffer(**{"groups_per_step": 1, "max_lag": 0, "max_replaced_groups": 9} | settings)
        for each in rewards:
            await buffer.put(group(await buffer.admit(source, version), each))
        if "groups_per_step" in settings:
            assert len(await buffer.take(version.value)) == 2
        return buffer.dropped.zero_advantage, buffer.dropped.failed

    assert asyncio.run(story()) == dropped


def test_rewards_of_dropped_groups_are_measured_each_once() -> None:
    async def story() -> list[dict[str, float]]:
        version, source = VersionCell(WeightVersion(step=0)), mixture()
        buffer = Buffer(groups_per_step=1, max_lag=0, max_replaced_groups=8)
        steps = []
        for rewards in ([[1.0, 1.0], [1.0], [1.0, 1.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]):
            for answers in rewards:
                await buffer.put(group(await buffer.admit(source, version), answers))
            groups, dropped = await buffer.take(version.value), buffer.dropped
            steps.append(step_metrics(report_of(groups, dropped=dropped)))
            await buffer.record_trained(1)
            await buffer.release(1)
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


def test_each_draw_has_its_own_thinking_mode_and_always_the_same() -> None:
    mixed = Mixture({"math": Numbered()}, {"math": 1.0}, thinking=ThinkingMix(no_thinking=0.5), seed=1)
    first, again = ([mixed.task(Draw(env="math", index=n)).thinking for n in range(100)] for _ in range(2))
    assert first == again
    assert 30 < first.count(OFF) < 70


def test_the_event_log_gets_what_became_of_answers() -> None:
    rows: list[dict[str, int | str]] = []

    async def work() -> None:
        buffer = Buffer(
            groups_per_step=1, max_lag=1, max_replaced_groups=0, event_log=lambda event, row: rows.append({**row})
        )
        version = VersionCell(WeightVersion(step=0))
        first, second = [await buffer.admit(mixture(), version) for _ in range(2)]
        failure = Failure(kind=FailureKind.TIMEOUT, message="too slow")
        failed = Trajectory(task=first.task, turns=(), stop=Stop.FAILURE, failure=failure)
        await buffer.put(Group(ticket=first, trajectories=(), failed=(failed, failed)))
        await buffer.put(group(second, [0.0, 1.0]))

    asyncio.run(work())
    assert rows[2:] == [
        {"ticket": 0, "answers": 0, "failed": 2, "tokens": 0},
        {"ticket": 0, "why": "timeout 2"},
        {"ticket": 1, "answers": 2, "failed": 0, "tokens": 0},
    ]


def full_event_log(event: TicketEvent, values: Mapping[str, int | str]) -> None:
    if (event, values["ticket"]) == ("admitted", 3):
        raise OSError("no room for ticket 3")


def test_a_task_whose_ticket_could_not_be_written_down_is_in_the_checkpoint_before_the_end() -> None:
    async def work() -> BufferState:
        buffer, source = (
            Buffer(groups_per_step=4, max_lag=0, max_replaced_groups=0, event_log=full_event_log),
            mixture(),
        )
        version = VersionCell(WeightVersion(step=0))
        for _ in range(3):
            await buffer.admit(source, version)
        with pytest.raises(OSError, match="ticket 3"):
            await buffer.admit(source, version)
        return buffer.state()

    state = asyncio.run(work())
    assert state.totals.is_balanced
    assert [(held.number, held.draw.index) for held in state.tickets] == [(n, n) for n in range(state.next_ticket)]


GROUP = cast(Group, object())
VERSIONS = 6


def change(held: HeldSlots, plain: list[Slot], rng: random.Random, number: int) -> None:
    """Make one random valid change to the slots and to the plain list."""
    what = rng.choice(("add", "add", "enter", "enter", "finish", "remove", "reset"))
    if what == "add" or not plain:
        state = rng.choice(list(SlotState))
        undecided = state is SlotState.GENERATING and rng.random() < 0.3
        group = None if state in MISSING and not undecided else GROUP
        version = WeightVersion(step=rng.randrange(VERSIONS))
        slot = Slot(number=number, draw=Draw(env="math", index=number), admitted=version, state=state, group=group)
        held.add(slot)
        plain.append(slot)
        return
    slot = rng.choice(plain)
    later = [state for state in SlotState if list(SlotState).index(state) > list(SlotState).index(slot.state)]
    if what == "remove":
        held.remove(slot)
        plain.remove(slot)
    elif what == "reset":
        held.reset(slot)
        assert (slot.state, slot.ticket, slot.group) == (SlotState.MAKING, None, None)
    elif what == "finish" and slot.state is SlotState.GENERATING:
        held.finish(slot, GROUP)
    elif what == "enter" and later:
        held.enter(slot, rng.choice(later))


@pytest.mark.parametrize("seed", range(5))
def test_counts_that_follow_changes_are_those_of_a_plain_count(seed: int) -> None:
    rng, held, plain = random.Random(seed), HeldSlots(), list[Slot]()
    for number in range(400):
        change(held, plain, rng, number)
        missing = [slot for slot in plain if slot.state in MISSING]
        assert list(held) == plain
        assert len(held) == len(plain)
        assert held.missing == missing
        assert held.counts == {state: sum(slot.state is state for slot in plain) for state in SlotState}
        assert all(held.in_state(state) == [slot for slot in plain if slot.state is state] for state in SlotState)
        assert held.any_undecided == any(slot.group is not None for slot in missing)
        for version in range(-1, VERSIONS):
            assert held.missing_until(version) == sum(slot.admitted.step <= version for slot in missing)
    assert [held[slot.number] for slot in plain] == plain

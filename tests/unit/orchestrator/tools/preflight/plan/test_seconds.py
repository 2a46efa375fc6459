"""The seconds of a plan on shared cores: sides that slow each other down, and the sampling by which a probe measures them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.plain_pool import TASK, Worker, pool_of, settle

from temper.envs.core.member import WorkerDied
from temper.envs.core.task import Task
from temper.learner.batches.micro_batches import TrainBatch
from temper.learner.losses.config import LossConfig
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.tools.bench.processes import Processes
from temper.orchestrator.tools.preflight.plan.seconds.probe import Probe
from temper.orchestrator.tools.preflight.plan.seconds.rates import Rates, Slowdown
from temper.orchestrator.tools.preflight.plan.seconds.steady import steady_sampling
from temper.orchestrator.tools.preflight.plan.seconds.step_time import overlapped
from temper.orchestrator.tools.preflight.simulation.learner import SimulatedLearner
from temper.orchestrator.tools.preflight.simulation.meter import FleetMeter
from temper.orchestrator.tools.preflight.simulation.speeds import Speeds
from temper.orchestrator.tools.preflight.simulation.virtual_time import run_virtually
from temper.orchestrator.tools.preflight.simulation.worker import Fleet, SimulatedWorker
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.pool.restarts import RestartLimit
from temper.rollout.pool.served_weights import ServedWeights
from temper.rollout.pool.slot_keeper import Healing
from temper.rollout.trajectory import Group, WeightVersion


def steps_by_the_clock(engines_s: float, learner_s: float, slowdown: Slowdown) -> float:
    """Seconds of a step where both sides are played in small pieces of time, and engines are at most two steps ahead."""
    pieces, sampled, learnt = 2000, 0.0, 0.0
    length = (engines_s + learner_s) / pieces
    for _ in range(40 * pieces):
        samples, learns = sampled < int(learnt) + 2, int(sampled) > int(learnt)
        both = samples and learns
        sampled += samples * length / engines_s / (slowdown.engines if both else 1)
        learnt += learns * length / learner_s / (slowdown.learner if both else 1)
    return 40 * pieces * length / learnt


@pytest.mark.parametrize(("engines_s", "learner_s"), [(4.0, 1.0), (3.0, 2.0), (2.0, 2.2), (1.0, 4.0)])
@pytest.mark.parametrize(
    "slowdown", [Slowdown(), Slowdown(engines=1.3, learner=1.5), Slowdown(engines=2.0, learner=2.0)]
)
def test_sides_that_slow_each_other_down_take_what_they_take_piece_by_piece(
    engines_s: float, learner_s: float, slowdown: Slowdown
) -> None:
    step_s, slower = overlapped(engines_s, learner_s, slowdown)
    assert step_s == pytest.approx(steps_by_the_clock(engines_s, learner_s, slowdown), rel=0.04)
    assert step_s == pytest.approx(max(engines_s * slower.engines, learner_s * slower.learner))
    if slowdown == Slowdown():
        assert step_s == max(engines_s, learner_s)
    if slowdown.engines == 2.0:  # one core by turns
        assert step_s == pytest.approx(engines_s + learner_s)


class Tasks:
    """The same task, whatever is asked for."""

    def task(self, index: int) -> Task:
        return TASK


MIXTURE = Mixture({"math": Tasks()}, {"math": 1.0})


def test_as_many_groups_are_in_flight_until_the_block_ends_and_then_none() -> None:
    worker = Worker(held=True)

    async def story() -> tuple[int, set[int], float]:
        pool = await pool_of([worker])
        async with steady_sampling(pool, MIXTURE, groups=3, answers=4, first=100) as sampling:
            await settle()
            began = worker.running
            worker.released.set()
            groups = await sampling.groups(7)
            rate = await sampling.rate_until(asyncio.sleep(0.05))
            worker.released.clear()
            await settle()
        await pool.close()
        return began, {group.ticket.number for group in groups}, rate

    began, tickets, rate = asyncio.run(story())
    assert began == 3
    assert tickets == set(range(100, 107))
    assert 0 < rate <= 10 / 0.05  # the worker says that it sampled 10 tokens since it was asked last
    assert worker.running == 0


PASS_S = 0.02
LEARN_S = 0.001
"""Seconds of a pass of an engine, however full it is, and of a token of the learner's."""
LENGTH, GROUPS, ANSWERS = 30, 4, 2


class AlikeLengths:
    """Answers of one length."""

    def of(self, ticket: int, answers: int) -> list[int]:
        return [LENGTH] * answers


class SharingLearner(SimulatedLearner):
    """A learner that takes twice as long while an engine runs, and batches whose tokens are counted."""

    fleet: Fleet

    async def step(self, *batches: TrainBatch, epochs: int = 1) -> dict[str, float]:
        tokens = sum(batch.tokens for batch in batches)
        await asyncio.sleep(LEARN_S * tokens * (2 if self.fleet.meter.sequences else 1))
        return {}

    def of_groups(self, groups: Sequence[Group], loss: LossConfig, *, updates: int, epochs: int) -> list[TrainBatch]:
        tokens = sum(answer.sampled_tokens for group in groups for answer in group.trajectories)
        each = tokens // updates
        return (
            [TrainBatch(micro_batches=((),), denominator=1, samples=1, tokens=each, trained_tokens=each)]
            * updates
            * epochs
        )


async def probed(settings: RlConfig) -> Rates:
    """What a probe finds out of two engines and a learner that only take time."""
    speeds = Speeds(
        pass_s=(0.0, *[PASS_S] * 64),
        learn_token_s=LEARN_S,
        learn_fixed_s=0.0,
        publish_s=0.25,
        load_s=0.5,
        transport="shared_memory",
        prompt_tokens=0.0,
        source="",
    )
    clock = asyncio.get_running_loop().time
    meter = FleetMeter(engines=2, most=64, in_flight=64, clock=clock)
    fleet = Fleet(speeds=speeds, lengths=AlikeLengths(), meter=meter, deaths=0.0, kept=1.0, seed=0)
    pool = RolloutPool(
        lambda number: SimulatedWorker(number, 0, fleet),
        workers=2,
        weights=ServedWeights(Path("simulated"), WeightVersion(step=0), push_s=lambda nbytes: 60.0),
        retries=0,
        healing=Healing(restarts=RestartLimit(0, window_s=1.0), start_s=1.0),
    )
    await pool.start()
    learner = SharingLearner(speeds, meter)
    learner.fleet = fleet
    made = Processes(pool=pool, learner=learner, start_s=0.0)  # type: ignore[arg-type]
    probe = Probe(made, MIXTURE, settings, learner, engines=2)  # type: ignore[arg-type]
    try:
        return await (probe.at_once() if settings.max_lag else probe.by_turns())
    finally:
        await pool.close()


def test_a_probe_finds_the_rates_that_engines_and_learner_have() -> None:
    usual = RlConfig(groups_per_step=GROUPS, group_size=ANSWERS, epochs=2, updates_per_step=2)
    turns = run_virtually(probed(replace(usual, max_lag=0)))
    in_a_pass = GROUPS * ANSWERS / 2  # of each of the two engines
    assert turns.sampled_per_s == pytest.approx(in_a_pass / PASS_S)
    assert turns.token_s == pytest.approx(PASS_S)
    assert turns.slowdown == Slowdown()
    beside = run_virtually(probed(replace(usual, max_lag=1)))
    assert beside.sampled_per_s == pytest.approx(in_a_pass / PASS_S, rel=0.1)  # of 8 slots 4 are being trained
    assert beside.token_s == pytest.approx(PASS_S, rel=0.1)
    assert beside.slowdown.learner == pytest.approx(2.0)
    assert beside.slowdown.engines == pytest.approx(1.0, abs=0.1)
    for rates in (turns, beside):
        assert rates.trained_per_s == pytest.approx(1 / LEARN_S)
        assert [rates.publish_s, rates.load_s] == pytest.approx([0.25, 0.5])


def test_what_a_group_fails_with_ends_the_sampling() -> None:
    async def story() -> None:
        worker = Worker(held=True)
        pool = await pool_of([worker], restarts=0)
        async with steady_sampling(pool, MIXTURE, groups=2, answers=4, first=0) as sampling:
            await settle()
            worker.kill()
            await sampling.groups(1)

    with pytest.raises((WorkerDied, RuntimeError)):
        asyncio.run(asyncio.wait_for(story(), 20))

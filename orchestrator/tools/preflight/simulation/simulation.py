"""One simulated run: `Loop`, `Buffer`, `Mixture` and `RolloutPool` as they are, in virtual time, with what only takes time.

    Loop --ticket--> RolloutPool --> SimulatedWorker   an engine whose passes take as long as they should, and its deaths
    Loop --groups--> SimulatedLearner                  sleeps as long as a step takes, publishes a push of nothing
    Delivery, SlotKeeper, RestartLimit                 the product's own: retries, joins, healing, giving up

Real are the decisions, simulated the durations.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from temper.envs.core.task import EnvRef, Task
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.deadline import Deadline, StopFlag, StuckError, Waits
from temper.orchestrator.loop.interfaces import Hooks
from temper.orchestrator.loop.loop import Loop
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.step_report import StepReport
from temper.orchestrator.tools.preflight.simulation.learner import SimulatedLearner
from temper.orchestrator.tools.preflight.simulation.meter import FleetMeter
from temper.orchestrator.tools.preflight.simulation.outcome import Outcome, Record, outcome_of
from temper.orchestrator.tools.preflight.simulation.scenario import Scenario
from temper.orchestrator.tools.preflight.simulation.virtual_time import run_virtually
from temper.orchestrator.tools.preflight.simulation.worker import Fleet, SimulatedWorker
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.pool.restarts import TOGETHER_S, RestartLimit, TooManyRestarts
from temper.rollout.pool.served_weights import ServedWeights
from temper.rollout.pool.slot_keeper import Healing
from temper.rollout.trajectory import WeightVersion

START_DEADLINE = 3.0
"""How many times its planned start an engine may take: starts are not what is simulated."""


class _Tasks:
    """As many tasks as are asked for, all alike but for their keys."""

    def task(self, index: int) -> Task:
        """Return the task at `index`."""
        return Task(
            env=EnvRef(name="simulated"), key=str(index), messages=({"role": "user", "content": "simulated"},), spec={}
        )


@dataclass(slots=True, kw_only=True)
class Parts:
    """What runs in a simulation: the product's classes, and the stand-ins' ends of them."""

    loop: Loop
    pool: RolloutPool
    meter: FleetMeter


def simulate(
    scenario: Scenario,
    *,
    on_step: Callable[[int], None] = lambda step: None,
    on_parts: Callable[[Parts], None] = lambda parts: None,
) -> Outcome:
    """Return what a scenario measures; `on_step` is told of each step, filling ones too, and `on_parts` of what runs.

    Raise `ValueError` where it makes no sense, and `NothingLeft` where it would wait for ever.
    """
    if scenario.engines < 1 or scenario.steps < 1 or scenario.deaths < 0:
        raise ValueError(
            f"engines={scenario.engines} and steps={scenario.steps} must be at least 1, deaths={scenario.deaths:g} at least 0"
        )
    record = Record()
    run_virtually(_run(scenario, record, on_step, on_parts))
    return outcome_of(scenario, record)


async def _run(
    scenario: Scenario, record: Record, on_step: Callable[[int], None], on_parts: Callable[[Parts], None]
) -> None:
    clock = asyncio.get_running_loop().time
    loop = scenario.loop
    meter = FleetMeter(
        engines=scenario.engines,
        most=scenario.speeds.places,
        in_flight=loop.slots * loop.group_size,
        clock=clock,
    )
    pool = _pool(scenario, record, meter)
    await pool.start()

    async def note(report: StepReport) -> None:
        record.add(report, meter.seconds(), counted=report.step > scenario.filling)
        on_step(report.step)
        await asyncio.sleep(scenario.speeds.between_s)

    wired = _loop(scenario, pool, SimulatedLearner(scenario.speeds, meter), note)
    on_parts(Parts(loop=wired, pool=pool, meter=meter))
    try:
        await wired.run(1, scenario.filling + scenario.steps)
    except (StuckError, TooManyRestarts) as error:
        record.ended = f"{type(error).__name__}: {error}"
    finally:
        await pool.close()


def _pool(scenario: Scenario, record: Record, meter: FleetMeter) -> RolloutPool:
    fleet = Fleet(
        speeds=scenario.speeds,
        lengths=scenario.lengths,
        meter=meter,
        deaths=scenario.deaths,
        kept=scenario.kept,
        seed=scenario.seed,
    )
    clock, watched = asyncio.get_running_loop().time, scenario.supervision
    lives: Counter[int] = Counter()

    def spawn(number: int) -> SimulatedWorker:
        lives[number] += 1
        return SimulatedWorker(number, lives[number] - 1, fleet)

    def count(what: str) -> None:
        record.counts[what] += 1

    pool = RolloutPool(
        spawn,
        workers=scenario.engines,
        weights=ServedWeights(Path("simulated"), WeightVersion(step=0), push_s=lambda nbytes: scenario.loop.timeout_s),
        retries=scenario.retries,
        healing=Healing(
            restarts=RestartLimit(watched.restarts, window_s=watched.window_s, together_s=TOGETHER_S, clock=clock),
            start_s=START_DEADLINE * max(1.0, scenario.speeds.start_s),
            died=lambda name, death: count("deaths"),
        ),
    )
    pool.on_reissue = lambda number, why: count("reissued")
    return pool


def _loop(
    scenario: Scenario,
    pool: RolloutPool,
    learner: SimulatedLearner,
    note: Callable[[StepReport], Awaitable[None]],
) -> Loop:
    loop = scenario.loop
    limit = Deadline(seconds=loop.timeout_s, setting=f"{loop.stage}.timeout_s")

    async def nothing(told: object) -> None:
        """Save nothing."""

    buffer = Buffer(
        groups_per_step=loop.groups_per_step,
        max_lag=loop.max_lag,
        max_drops=loop.max_drops if isinstance(loop, RlConfig) else 0,
        slots=loop.slots,
        fewest=loop.fewest_answers,
        clock=asyncio.get_running_loop().time,
    )
    return Loop(
        rollouts=pool,
        learner=learner,
        mixture=Mixture({"simulated": _Tasks()}, {"simulated": 1.0}, seed=scenario.seed),
        buffer=buffer,
        version=VersionCell(WeightVersion(step=0)),
        group_size=loop.group_size,
        hooks=Hooks(
            make_batches=learner.batches,
            on_group=lambda group: group,
            on_step=note,
            save=nothing,
            on_fault=nothing,
        ),
        waits=Waits(
            stage=loop.stage, stop=StopFlag(), limit=limit, push_limit=lambda nbytes: limit, healed=pool.healed
        ),
        epochs=loop.epochs,
    )

"""One simulated run: `Loop`, `Buffer`, `Mixture` and `RolloutPool` as they are, in virtual time, with stand-ins.

    Loop --ticket--> RolloutPool --> SimulatedWorker --> Driver   passes of an engine, then the CPU of the driver
    Loop --groups--> SimulatedLearner                             sleeps for a step, publishes an empty push

The decisions are real, the durations simulated.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from temper.envs.core.task import EnvRef, Task
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.deadline import Deadline, StopFlag, StuckError, Waits
from temper.orchestrator.loop.interfaces import Hooks
from temper.orchestrator.loop.loop import Loop
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.step import StepReport
from temper.orchestrator.tools.preflight.simulation.scenario import Scenario
from temper.orchestrator.tools.preflight.simulation.simulated_parts import Driver, SimulatedLearner, SimulatedWorker
from temper.orchestrator.tools.preflight.simulation.virtual_time import run_virtually
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.pool.served_weights import ServedWeights
from temper.rollout.pool.slot_keeper import RestartPolicy
from temper.rollout.trajectory import WeightVersion

Floats = NDArray[np.float64]
START_DEADLINE = 3.0
"""Multiple of the planned start time of an engine before a start fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures of a simulated run over its counted steps. Shares are of the time, or of all engines' time."""

    engines: int
    max_lag: int
    steps: int
    start_s: float
    """Seconds until all engines serve, before the first step."""
    step_s: float = 0.0
    samples_per_s: float = 0.0
    """Answers that were trained on, a second."""
    tokens_per_s: float = 0.0
    """Their sampled tokens."""
    engines_idle: float = 0.0
    """Share of the engines' time without a sequence: nothing to do, or a load."""
    places_used: float = 0.0
    """Share of the engines' places for sequences that were taken."""
    learner_idle: float = 0.0
    driver_busy: float = 0.0
    """Busy share of the driver's CPU. 1 means that it is the bottleneck."""
    lag_mean: float = 0.0
    lag_max: int = 0
    ended: str = ""
    """Why the run gave up before its last step. Empty if it did not."""


def simulate(scenario: Scenario) -> Outcome:
    """Return the outcome of a scenario. Raise `NoEventsLeft` if it would wait for ever."""
    return run_virtually(_Run(scenario).run())


class _Tasks:
    """Any number of tasks, which differ only in their keys."""

    def task(self, index: int) -> Task:
        message = {"role": "user", "content": "simulated"}
        return Task(env=EnvRef(name="simulated"), key=str(index), messages=(message,), spec={})


class _Run:
    """The real classes, the simulated parts, and the sums over counted steps."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._driver, self._workers = Driver(), list[SimulatedWorker]()
        self._learner = SimulatedLearner(scenario.speeds)
        self._pool = RolloutPool(
            self._spawn,
            workers=scenario.engines,
            weights=ServedWeights(
                Path("simulated"), WeightVersion(step=0), push_s=lambda nbytes: scenario.loop.timeout_s
            ),
            retries=0,
            restart_policy=RestartPolicy(start_s=START_DEADLINE * max(1.0, scenario.speeds.start_s)),
        )
        self._steps = self._answers = self._tokens = 0
        self._lags: Counter[int] = Counter()  # of groups: versions from their admission to their step
        self._first: Floats | None = None
        self._last: Floats | None = None

    async def run(self) -> Outcome:
        ended = ""
        await self._pool.start()
        start_s = asyncio.get_running_loop().time()
        try:
            await self._loop().run(1, self._scenario.filling + self._scenario.steps)
        except StuckError as error:
            ended = str(error)
        finally:
            await self._pool.close()
        return self._outcome(start_s, ended)

    def _spawn(self, number: int) -> SimulatedWorker:
        self._workers.append(SimulatedWorker(number, self._scenario, self._driver))
        return self._workers[-1]

    def _loop(self) -> Loop:
        settings = self._scenario.loop
        limit = Deadline(seconds=settings.timeout_s, setting=f"{settings.stage}.timeout_s")
        buffer = Buffer(
            groups_per_step=settings.groups_per_step,
            max_lag=settings.max_lag,
            max_replaced_groups=settings.max_replaced_groups if isinstance(settings, RlConfig) else 0,
            slots=settings.slots,
            min_answers=settings.min_answers,
            clock=asyncio.get_running_loop().time,
        )
        return Loop(
            rollouts=self._pool,
            learner=self._learner,
            mixture=Mixture({"simulated": _Tasks()}, {"simulated": 1.0}, seed=self._scenario.seed),
            buffer=buffer,
            version=VersionCell(WeightVersion(step=0)),
            group_size=settings.group_size,
            hooks=Hooks(
                build_batches=self._learner.build,
                on_group=lambda group: group,
                on_step=self._note,
                save=_save_nothing,
                on_fault=_save_nothing,
            ),
            waits=Waits(
                stage=settings.stage,
                stop=StopFlag(),
                limit=limit,
                push_limit=lambda nbytes: limit,
                last_restart_at=self._pool.last_restart_at,
            ),
            epochs=settings.epochs,
        )

    async def _note(self, report: StepReport) -> None:
        """Count a step, and keep nothing of its groups."""
        if report.step >= self._scenario.filling:
            self._last = self._sums()
            self._first = self._last if self._first is None else self._first
        if report.step > self._scenario.filling:
            answers = [answer for group in report.groups for answer in group.trajectories]
            self._steps += 1
            self._answers += len(answers)
            self._tokens += sum(answer.sampled_tokens for answer in answers)
            self._lags.update(report.version.step - group.ticket.admitted.step for group in report.groups)

    def _sums(self) -> Floats:
        """Return the time, and the busy seconds until now of engines, their places, the learner and the driver."""
        engines = [worker.engine for worker in self._workers]
        for engine in engines:
            engine.advance()
        busy, places = sum(engine.busy_s for engine in engines), sum(engine.sequence_s for engine in engines)
        return np.array([asyncio.get_running_loop().time(), busy, places, self._learner.busy_s, self._driver.busy_s])

    def _outcome(self, start_s: float, ended: str) -> Outcome:
        """Return the figures of the counted steps. All are 0 if the run gave up before one."""
        engines, lag, first, last = self._scenario.engines, self._scenario.loop.max_lag, self._first, self._last
        if not self._steps or first is None or last is None:
            return Outcome(engines=engines, max_lag=lag, steps=0, start_s=start_s, ended=ended)
        total, busy, places, learner, driver = (last - first).tolist()
        return Outcome(
            engines=engines,
            max_lag=lag,
            steps=self._steps,
            start_s=start_s,
            step_s=total / self._steps,
            samples_per_s=self._answers / total,
            tokens_per_s=self._tokens / total,
            engines_idle=1 - busy / total / engines,
            places_used=places / total / engines / self._scenario.speeds.places,
            learner_idle=1 - learner / total,
            driver_busy=driver / total,
            lag_mean=sum(lag * groups for lag, groups in self._lags.items()) / self._lags.total(),
            lag_max=max(self._lags),
            ended=ended,
        )


async def _save_nothing(given: object) -> None: ...

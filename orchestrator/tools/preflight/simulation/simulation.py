"""One simulated run: `Loop`, `Buffer`, `Mixture` and `RolloutPool` as they are, in virtual time, beside stand-ins.

    Loop --ticket--> RolloutPool --> SimulatedWorker --> Driver   passes of an engine, then the CPU of the driver
    Loop --groups--> SimulatedLearner                             sleeps for a step, publishes an empty push

The decisions are real, the durations simulated.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from temper.envs.core.task import EnvRef, Task
from temper.orchestrator.config.loop import LoopConfig, RlConfig
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.deadline import Deadline, StopFlag, StuckError, Waits
from temper.orchestrator.loop.interfaces import Hooks
from temper.orchestrator.loop.loop import Loop
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.step import StepReport
from temper.orchestrator.tools.preflight.simulation.driver import Driver
from temper.orchestrator.tools.preflight.simulation.learner import SimulatedLearner
from temper.orchestrator.tools.preflight.simulation.lengths import LogNormal
from temper.orchestrator.tools.preflight.simulation.speeds import Speeds
from temper.orchestrator.tools.preflight.simulation.virtual_time import run_virtually
from temper.orchestrator.tools.preflight.simulation.worker import Shared, SimulatedWorker
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.pool.served_weights import ServedWeights
from temper.rollout.pool.slot_keeper import Healing
from temper.rollout.trajectory import WeightVersion

START_DEADLINE = 3.0
"""Multiple of its planned start that an engine may take: starts never fail here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run to simulate, with the settings of its stage. `steps` are counted after `filling` ones at the start."""

    loop: LoopConfig
    engines: int
    speeds: Speeds
    lengths: LogNormal
    kept: float = 1.0
    """Share of the groups that teach something."""
    steps: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"--steps {self.steps}: must be 1 or more")

    @property
    def filling(self) -> int:
        """Steps at the start that are not counted: nothing is in flight before them."""
        return self.loop.max_lag + 2


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
    """Share of the time in which the driver's CPU works; 1 means that it is the limit."""
    lag_mean: float = 0.0
    lag_max: int = 0
    ended: str = ""
    """Why the run gave up before its last step; empty if it did not."""


@dataclass(slots=True)
class _Sums:
    """Sums of busy seconds up to a moment."""

    at: float
    engines: float
    places: float
    learner: float
    driver: float


@dataclass(slots=True, kw_only=True)
class Run:
    """The parts of a simulated run: the product's classes, and the stand-ins."""

    scenario: Scenario
    driver: Driver
    workers: list[SimulatedWorker]
    pool: RolloutPool
    learner: SimulatedLearner
    start_s: float = 0.0
    steps: int = 0
    answers: int = 0
    tokens: int = 0
    lags: Counter[int] = field(default_factory=Counter)
    """Groups that were trained so many versions after their admission."""
    first: _Sums | None = None
    last: _Sums | None = None
    ended: str = ""

    async def note(self, report: StepReport) -> None:
        """Count a step, and keep nothing of its groups."""
        if report.step >= self.scenario.filling:
            self.last = self._sums()
            self.first = self.first or self.last
        if report.step > self.scenario.filling:
            answers = [answer for group in report.groups for answer in group.trajectories]
            self.steps += 1
            self.answers += len(answers)
            self.tokens += sum(answer.sampled_tokens for answer in answers)
            self.lags.update(report.version.step - group.ticket.admitted.step for group in report.groups)

    def _sums(self) -> _Sums:
        engines = [worker.engine for worker in self.workers]
        for engine in engines:
            engine.advance()
        return _Sums(
            at=asyncio.get_running_loop().time(),
            engines=sum(engine.busy_s for engine in engines),
            places=sum(engine.sequence_s for engine in engines),
            learner=self.learner.busy_s,
            driver=self.driver.busy_s,
        )

    def outcome(self) -> Outcome:
        """Return the figures of the counted steps; all of them 0 if the run gave up before one."""
        scenario, first, last = self.scenario, self.first, self.last
        engines, lag = scenario.engines, scenario.loop.max_lag
        if not self.steps or first is None or last is None:
            return Outcome(engines=engines, max_lag=lag, steps=0, start_s=self.start_s, ended=self.ended)
        total = last.at - first.at
        return Outcome(
            engines=engines,
            max_lag=lag,
            steps=self.steps,
            start_s=self.start_s,
            step_s=total / self.steps,
            samples_per_s=self.answers / total,
            tokens_per_s=self.tokens / total,
            engines_idle=1 - (last.engines - first.engines) / total / engines,
            places_used=(last.places - first.places) / total / engines / scenario.speeds.places,
            learner_idle=1 - (last.learner - first.learner) / total,
            driver_busy=(last.driver - first.driver) / total,
            lag_mean=sum(lag * groups for lag, groups in self.lags.items()) / self.lags.total(),
            lag_max=max(self.lags),
            ended=self.ended,
        )


def simulate(scenario: Scenario, *, on_loop: Callable[[Loop], None] = lambda loop: None) -> Outcome:
    """Return the outcome of a scenario; `on_loop` receives its loop before it runs.

    Raise `NothingLeft` if it would wait for ever.
    """
    return run_virtually(_run(scenario, on_loop))


async def _run(scenario: Scenario, on_loop: Callable[[Loop], None]) -> Outcome:
    driver, workers = Driver(), list[SimulatedWorker]()
    shared = Shared(
        speeds=scenario.speeds, lengths=scenario.lengths, kept=scenario.kept, seed=scenario.seed, driver=driver
    )

    def spawn(number: int) -> SimulatedWorker:
        workers.append(SimulatedWorker(number, shared))
        return workers[-1]

    pool = RolloutPool(
        spawn,
        workers=scenario.engines,
        weights=ServedWeights(Path("simulated"), WeightVersion(step=0), push_s=lambda nbytes: scenario.loop.timeout_s),
        retries=0,
        healing=Healing(start_s=START_DEADLINE * max(1.0, scenario.speeds.start_s)),
    )
    learner = SimulatedLearner(scenario.speeds)
    run = Run(scenario=scenario, driver=driver, workers=workers, pool=pool, learner=learner)
    await pool.start()
    run.start_s = asyncio.get_running_loop().time()
    loop = _loop(run)
    on_loop(loop)
    try:
        await loop.run(1, scenario.filling + scenario.steps)
    except StuckError as error:
        run.ended = str(error)
    finally:
        await pool.close()
    return run.outcome()


class _Tasks:
    """Any number of tasks, which differ only in their keys."""

    def task(self, index: int) -> Task:
        """Return the task at `index`."""
        message = {"role": "user", "content": "simulated"}
        return Task(env=EnvRef(name="simulated"), key=str(index), messages=(message,), spec={})


def _loop(run: Run) -> Loop:
    settings = run.scenario.loop
    limit = Deadline(seconds=settings.timeout_s, setting=f"{settings.stage}.timeout_s")

    async def nothing(given: object) -> None:
        """Save nothing."""

    buffer = Buffer(
        groups_per_step=settings.groups_per_step,
        max_lag=settings.max_lag,
        max_drops=settings.max_drops if isinstance(settings, RlConfig) else 0,
        slots=settings.slots,
        fewest=settings.fewest_answers,
        clock=asyncio.get_running_loop().time,
    )
    return Loop(
        rollouts=run.pool,
        learner=run.learner,
        mixture=Mixture({"simulated": _Tasks()}, {"simulated": 1.0}, seed=run.scenario.seed),
        buffer=buffer,
        version=VersionCell(WeightVersion(step=0)),
        group_size=settings.group_size,
        hooks=Hooks(
            make_batches=run.learner.batches,
            on_group=lambda group: group,
            on_step=run.note,
            save=nothing,
            on_fault=nothing,
        ),
        waits=Waits(
            stage=settings.stage, stop=StopFlag(), limit=limit, push_limit=lambda nbytes: limit, healed=run.pool.healed
        ),
        epochs=settings.epochs,
    )

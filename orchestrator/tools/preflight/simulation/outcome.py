"""What a simulated run measured, from the reports of its steps and the sums of its meter."""

from collections import Counter
from dataclasses import dataclass, field
from time import process_time

from temper.orchestrator.loop.step_report import StepReport
from temper.orchestrator.tools.preflight.simulation.meter import Cause, Seconds
from temper.orchestrator.tools.preflight.simulation.scenario import Scenario

NEVER_IDLE = 0.05
"""A learner that is idle for less than this share is what the run waits for, whatever the engines do beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a simulated run measured over its counted steps. Shares are of the time, or of all engines' time."""

    engines: int
    max_lag: int
    steps: int
    step_s: float
    samples_per_s: float
    """Answers that were trained on, a second."""
    tokens_per_s: float
    """Their sampled tokens."""
    engines_idle: float
    """Share of the engines' time without a sequence: nothing to do, a load, a start."""
    places_used: float
    """Share of the engines' places for sequences that were taken."""
    learner_idle: float
    lag_mean: float
    lag_max: int
    causes: dict[str, float]
    """Share of the time by what the run waited for."""
    limited_by: str
    """The largest of these; learning where the learner is never idle."""
    deaths: int
    """Deaths of engines, of the steps that are not counted too."""
    reissued: int
    """Groups that another engine had to begin again, of all steps."""
    cpu_step_s: float
    """Seconds of a core in which this process simulated a step: the driver's own work, and what stands for engines."""
    ended: str = ""
    """Why the run gave up before its last step; empty where it did not."""

    @property
    def steps_per_hour(self) -> float:
        return 3600 / self.step_s if self.step_s else 0.0


@dataclass(slots=True)
class Record:
    """What the steps reported, with the sums of the meter at the end of each, and how often what happened."""

    steps: int = 0
    answers: int = 0
    tokens: int = 0
    lags: Counter[int] = field(default_factory=Counter)
    """Groups that were trained so many versions after their admission; these three of the counted steps alone."""
    seconds: list[Seconds] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    ended: str = ""

    def add(self, report: StepReport, seconds: Seconds, *, counted: bool) -> None:
        """Take note of a step, of whose groups nothing is kept."""
        self.seconds.append(seconds)
        self.cpu_s.append(process_time())
        if counted:
            answers = [answer for group in report.groups for answer in group.trajectories]
            self.steps += 1
            self.answers += len(answers)
            self.tokens += sum(answer.sampled_tokens for answer in answers)
            self.lags.update(report.version.step - group.ticket.admitted.step for group in report.groups)


def outcome_of(scenario: Scenario, record: Record) -> Outcome:
    """Return the figures of the counted steps; all of them 0 where the run gave up before one."""
    steps, lags, skipped = record.steps, record.lags, scenario.filling
    if not steps:
        return _none(scenario, record)
    passed = record.seconds[-1].since(record.seconds[skipped - 1])
    causes = {cause: seconds / passed.total for cause, seconds in passed.causes.items()}
    learner_idle = 1 - passed.learner / passed.total
    limit = Cause.LEARNING if learner_idle < NEVER_IDLE else max(causes, key=lambda cause: causes[cause])
    cpu_s = record.cpu_s[-1] - record.cpu_s[skipped - 1]
    return Outcome(
        engines=scenario.engines,
        max_lag=scenario.loop.max_lag,
        steps=steps,
        step_s=passed.total / steps,
        samples_per_s=record.answers / passed.total,
        tokens_per_s=record.tokens / passed.total,
        engines_idle=1 - passed.engines / passed.total / scenario.engines,
        places_used=passed.sequences / passed.total / scenario.engines / scenario.speeds.places,
        learner_idle=learner_idle,
        lag_mean=sum(lag * groups for lag, groups in lags.items()) / lags.total(),
        lag_max=max(lags),
        causes={cause.value: share for cause, share in causes.items()},
        limited_by=limit.value,
        deaths=record.counts["deaths"],
        reissued=record.counts["reissued"],
        cpu_step_s=cpu_s / steps,
        ended=record.ended,
    )


def _none(scenario: Scenario, record: Record) -> Outcome:
    return Outcome(
        engines=scenario.engines,
        max_lag=scenario.loop.max_lag,
        steps=0,
        step_s=0.0,
        samples_per_s=0.0,
        tokens_per_s=0.0,
        engines_idle=0.0,
        places_used=0.0,
        learner_idle=0.0,
        lag_mean=0.0,
        lag_max=0,
        causes=dict.fromkeys((cause.value for cause in Cause), 0.0),
        limited_by="",
        deaths=record.counts["deaths"],
        reissued=record.counts["reissued"],
        cpu_step_s=0.0,
        ended=record.ended,
    )

"""Simulations side by side: every case of the values that were asked for, all on the same speeds."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any

from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.supervision import SupervisionConfig
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.plan import planned_config, site_of
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.seconds.work import Work
from temper.orchestrator.tools.preflight.simulation.lengths import Lengths, LogNormal, Recorded, with_mean
from temper.orchestrator.tools.preflight.simulation.measured import measured_by
from temper.orchestrator.tools.preflight.simulation.outcome import Outcome
from temper.orchestrator.tools.preflight.simulation.scenario import Scenario
from temper.orchestrator.tools.preflight.simulation.simulation import simulate
from temper.orchestrator.tools.preflight.simulation.speeds import START_S, Speeds, planned_speeds

TAIL = 0.7
"""Deviation of the logarithm of the lengths of answers where nothing says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be simulated: every combination of these values; None takes what the configuration has, or the run had.

    `tails` are deviations of the logarithm of answers' lengths, `deaths` those of an engine an hour. With `grow` the groups of
    a step and the learner's ranks grow with the engines; without it both stay.
    """

    engines: tuple[int, ...] | None = None
    lags: tuple[int, ...] | None = None
    over_sampling: tuple[float, ...] | None = None
    tails: tuple[float, ...] | None = None
    deaths: tuple[float, ...] = (0.0,)
    grow: bool = False
    steps: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One combination. A `tail` of None are the lengths that a run recorded."""

    engines: int
    max_lag: int
    over_sampling: float | None
    tail: float | None
    deaths: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A case and what came of it."""

    case: Case
    outcome: Outcome

    def flat(self) -> dict[str, Any]:
        """Return both as plain data."""
        return asdict(self.case) | asdict(self.outcome) | {"steps_per_hour": self.outcome.steps_per_hour}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all cases stand on: a stage's settings, its speeds, what it samples, and the engines that these were planned for."""

    loop: LoopConfig
    engines: int
    speeds: Speeds
    work: Work
    supervision: SupervisionConfig
    retries: int
    longest: float
    groups: tuple[tuple[int, ...], ...] = ()
    """Recorded lengths."""

    def cases(self, asked: Asked) -> list[Case]:
        """Return every combination that makes sense: what is sampled beyond a step is at most the lag."""
        beyond: tuple[float | None, ...] = asked.over_sampling or (self.loop.over_sampling,)
        tails: tuple[float | None, ...] = asked.tails or ((None,) if self.groups else (TAIL,))
        engines, lags = asked.engines or (self.engines,), asked.lags or (self.loop.max_lag,)
        cases = [
            Case(engines=count, max_lag=lag, over_sampling=over if over and lag else None, tail=tail, deaths=deaths)
            for count, lag, over, tail, deaths in product(engines, lags, beyond, tails, asked.deaths)
            if not (asked.over_sampling and len(lags) > 1 and over and 0 < lag < over)
        ]
        return list(dict.fromkeys(cases))  # at lag 0 nothing is sampled beyond a step

    def scenario(self, case: Case, asked: Asked) -> Scenario:
        """Return what is simulated of a case. Raise `ValueError` where it makes no sense."""
        times = case.engines / self.engines if asked.grow else 1.0
        loop = replace(
            self.loop,
            groups_per_step=max(1, round(self.loop.groups_per_step * times)),
            max_lag=case.max_lag,
            over_sampling=case.over_sampling,
        )
        return Scenario(
            loop=loop,
            engines=case.engines,
            speeds=self.speeds.with_learners(times),
            lengths=self._lengths(case, asked.seed),
            supervision=self.supervision,
            deaths=case.deaths,
            kept=self.work.kept,
            retries=self.retries,
            steps=asked.steps,
            seed=asked.seed,
        )

    def _lengths(self, case: Case, seed: int) -> Lengths:
        if case.tail is None:
            return Recorded(groups=self.groups, seed=seed)
        plain = LogNormal(mean=self.work.answer_tokens, tail=case.tail, longest=self.longest, seed=seed)
        return with_mean(plain, self.work.answer_tokens)


def ground_of(
    file: Path,
    overrides: Sequence[str],
    *,
    gpus: str | None,
    assumptions: Assumptions,
    measured: Path | None = None,
    start_s: float = START_S,
) -> Ground:
    """Return what the cases of a configuration stand on: planned for the GPUs that are named, or as a run measured it.

    Raise `FileNotFoundError` or `ValueError` where what was given makes no sense.
    """
    site = site_of(gpus, assumptions)
    config, model = planned_config(file, overrides, site)
    planner = Planner(config, model, site, assumptions)
    groups: tuple[tuple[int, ...], ...] = ()
    if measured is None:
        speeds, work = planned_speeds(planner, start_s=start_s), planner.work
    else:
        found = measured_by(measured, planner, start_s=start_s)
        speeds, work, groups = found.speeds, found.work, found.groups
    assert work is not None
    assert planner.loop is not None
    return Ground(
        loop=config.settings(planner.loop),
        engines=planner.wanted.engines,
        speeds=speeds,
        work=work,
        supervision=config.supervision,
        retries=config.rollout.retries,
        longest=max(work.answer_tokens, planner.longest - work.prompt_tokens),
        groups=groups,
    )


def run_study(
    ground: Ground,
    asked: Asked,
    *,
    on_case: Callable[[int, int, Case], None] = lambda number, total, case: None,
    on_step: Callable[[int, int], None] = lambda step, total: None,
) -> list[Row]:
    """Return what each case measures; `on_case` is told of each before, `on_step` of each step and how many there are.

    Raise `ValueError` where one makes no sense.
    """
    check(asked)
    cases = ground.cases(asked)
    scenarios = [ground.scenario(case, asked) for case in cases]  # what makes no sense is refused at once
    rows = []
    for number, (case, scenario) in enumerate(zip(cases, scenarios, strict=True)):
        on_case(number, len(cases), case)
        told = partial(_told, on_step, scenario.filling + scenario.steps)
        rows.append(Row(case=case, outcome=simulate(scenario, on_step=told)))
    return rows


def _told(on_step: Callable[[int, int], None], total: int, step: int) -> None:
    on_step(step, total)


def check(asked: Asked) -> None:
    """Raise `ValueError` for a value that can't be."""
    wrong: dict[str, list[float]] = {
        "--engines": [n for n in asked.engines or () if n < 1],
        "--max-lag": [n for n in asked.lags or () if n < 0],
        "--over-sampling": [n for n in asked.over_sampling or () if not (isfinite(n) and n > 0)],
        "--tail": [n for n in asked.tails or () if not 0 <= n <= MOST_TAIL],
        "--deaths": [n for n in asked.deaths if not (isfinite(n) and n >= 0)],
        "--steps": [n for n in (asked.steps,) if n < 1],
    }
    for option, values in wrong.items():
        if values:
            raise ValueError(f"{option} {values[0]:g}: {RANGES[option]}")


MOST_TAIL = 3.0
RANGES = {
    "--engines": "must be 1 or more",
    "--max-lag": "must be 0 or more",
    "--over-sampling": "must be above 0, and at most the lag",
    "--tail": f"must lie between 0, answers of one length, and {MOST_TAIL:g}",
    "--deaths": "must be 0 or more",
    "--steps": "must be 1 or more",
}

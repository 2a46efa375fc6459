"""The answer of the command `doctor --simulate`: a table of cases for people, or JSON."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from temper.orchestrator.run.driver import keep_driver_small
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.plan import planned_config, site_of
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.simulation.driver import TOKEN_S
from temper.orchestrator.tools.preflight.simulation.lengths import LogNormal, with_mean
from temper.orchestrator.tools.preflight.simulation.simulation import Outcome, Scenario, simulate
from temper.orchestrator.tools.preflight.simulation.speeds import planned_speeds

MOST_TAIL = 3.0
COLUMNS = (
    *("engines", "lag", "samples/s", "step, s", "engines idle", "places used", "learner idle", "driver busy"),
    *("one driver serves", "lag mean", "start, s"),
)
WIDTH = 160


def scenarios(
    file: Path,
    overrides: Sequence[str],
    *,
    gpus: str | None,
    assumptions: Assumptions,
    engines: Sequence[int] | None,
    lags: Sequence[int] | None,
    tail: float,
    grow: bool,
    steps: int,
    seed: int,
) -> list[Scenario]:
    """Return every combination of `engines` and `lags`; None takes the configuration's value.

    `tail` is the deviation of the logarithm of answers' lengths. With `grow` the groups of a step and the learner's ranks grow
    with the engines. Raise `FileNotFoundError` or `ValueError` for invalid input.
    """
    if min(engines or [1]) < 1:
        raise ValueError(f"--engines {min(engines or [1])}: must be 1 or more")
    if not 0 <= tail <= MOST_TAIL:
        raise ValueError(f"--tail {tail:g}: must lie between 0, answers of one length, and {MOST_TAIL:g}")
    site = site_of(gpus, assumptions)
    planner = Planner(*planned_config(file, overrides, site), site, assumptions)
    planned_speeds(planner, engines=planner.wanted.engines, times=1.0)  # refuses a plan without a loop or speeds
    work, loop = planner.work, planner.loop
    assert work is not None
    assert loop is not None
    settings, cases = planner.config.settings(loop), []
    longest = max(work.answer_tokens, planner.longest - work.prompt_tokens)
    lengths = with_mean(LogNormal(mean=work.answer_tokens, tail=tail, longest=longest, seed=seed), work.answer_tokens)
    for count, lag in product(engines or [planner.wanted.engines], lags or [settings.max_lag]):
        times = count / planner.wanted.engines if grow else 1.0
        groups = max(1, round(times * settings.groups_per_step))
        over = settings.over_sampling if lag == settings.max_lag else None
        case = Scenario(
            loop=replace(settings, groups_per_step=groups, max_lag=lag, over_sampling=over),
            engines=count,
            speeds=planned_speeds(planner, engines=count, times=times),
            lengths=lengths,
            kept=work.kept,
            steps=steps,
            seed=seed,
        )
        cases.append(case)
    return cases


def answer(cases: Sequence[Scenario], *, as_json: bool) -> str:
    """Simulate all cases and return their figures as text; each is named on standard error before."""
    keep_driver_small()
    found = []
    for number, case in enumerate(cases, start=1):
        print(f"{number} of {len(cases)}: {case.engines:,} engines, lag {case.loop.max_lag}", file=sys.stderr)
        found.append(simulate(case))
    if as_json:
        return json.dumps({"cases": [asdict(one) for one in found]}, indent=1, allow_nan=False)
    return f"{_head(cases[0])}\n{_table(found)}"


def _head(case: Scenario) -> str:
    speeds = case.speeds
    return (
        f"an engine: {speeds.places} places, {1 / speeds.pass_s[1]:,.0f} tokens/s with one sequence, "
        f"{speeds.places / speeds.pass_s[-1]:,.0f} with all; a push: {speeds.publish_s + speeds.load_s:.2f} s by "
        f"{speeds.transport}; one driver: at most {1 / TOKEN_S:,.0f} tokens/s"
    )


def _table(found: Sequence[Outcome]) -> str:
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for one in found:
        table.add_row(*_cells(one))
    console = Console(width=WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join([*lines, *(f"{one.engines:,} engines: {one.ended}" for one in found if one.ended)])


def _cells(one: Outcome) -> list[str]:
    case = [f"{one.engines:,}", f"{one.max_lag}"]
    if not one.steps:
        return [*case, *("-" for _ in COLUMNS[len(case) : -1]), f"{one.start_s:,.0f}"]
    shares = (one.engines_idle, one.places_used, one.learner_idle, one.driver_busy)
    return [
        *case,
        f"{one.samples_per_s:,.2f}",
        f"{one.step_s:,.1f}",
        *(f"{share:.0%}" for share in shares),
        f"{one.engines / one.driver_busy:,.0f} engines",
        f"{one.lag_mean:.2f}",
        f"{one.start_s:,.0f}",
    ]

"""The answer of the command `doctor --simulate`: a table of cases for people, or JSON."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from temper.orchestrator.run.driver import keep_driver_small
from temper.orchestrator.tools.preflight.simulation.scenario import Scenario, Speeds
from temper.orchestrator.tools.preflight.simulation.simulated_parts import TOKEN_S
from temper.orchestrator.tools.preflight.simulation.simulation import Outcome, simulate

COLUMNS = (
    *("engines", "lag", "samples/s", "step, s", "engines idle", "places used", "learner idle", "driver busy"),
    *("one driver serves", "lag mean", "start, s"),
)
WIDTH = 160


def format_simulation(cases: Sequence[Scenario], *, as_json: bool) -> str:
    """Simulate all cases and return their figures as text. Print each case on standard error first."""
    keep_driver_small()
    found = []
    for number, case in enumerate(cases, start=1):
        print(f"{number} of {len(cases)}: {case.engines:,} engines, lag {case.loop.max_lag}", file=sys.stderr)
        found.append(simulate(case))
    if as_json:
        return json.dumps({"cases": [asdict(one) for one in found]}, indent=1, allow_nan=False)
    return f"{_head(cases[0].speeds)}\n{_table(found)}"


def _head(speeds: Speeds) -> str:
    return (
        f"an engine: {speeds.places} slots, {1 / speeds.pass_s[1]:,.0f} tokens/s with one sequence, "
        f"{speeds.places / speeds.pass_s[-1]:,.0f} with all; a push: {speeds.publish_s + speeds.load_s:.2f} s by "
        f"{speeds.transport}; one driver: at least {1 / TOKEN_S:,.0f} tokens/s"
    )


def _table(found: Sequence[Outcome]) -> str:
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for one in found:
        figures = _figures(one) if one.steps else ["-"] * (len(COLUMNS) - 3)
        table.add_row(f"{one.engines:,}", f"{one.max_lag}", *figures, f"{one.start_s:,.0f}")
    console = Console(width=WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join([*lines, *(f"{one.engines:,} engines: {one.ended}" for one in found if one.ended)])


def _figures(one: Outcome) -> list[str]:
    shares = (one.engines_idle, one.places_used, one.learner_idle, one.driver_busy)
    serves = f"{one.engines / one.driver_busy:,.0f} engines"
    return [
        *(f"{one.samples_per_s:,.2f}", f"{one.step_s:,.1f}"),
        *(f"{share:.0%}" for share in shares),
        *(serves, f"{one.lag_mean:.2f}"),
    ]

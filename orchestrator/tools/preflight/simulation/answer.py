"""What the command `simulate` answers: a table for people, JSON, a picture."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from temper.orchestrator.run.driver import keep_driver_small
from temper.orchestrator.tools.preflight.simulation.pictures import study_svg
from temper.orchestrator.tools.preflight.simulation.study import Asked, Case, Ground, Row, run_study

COLUMNS = (
    *("engines", "lag", "tail", "beyond", "deaths/h"),
    *("samples/s", "steps/h", "step, s", "engines idle", "places used", "learner idle", "lag mean", "max", "limit"),
    "CPU s/step",
)
SAME_LEFT_OUT = ("tail", "beyond", "deaths/h")
"""Columns that are left out where all cases have the same."""
WIDTH = 200
PICTURE = ".svg"


def answer_simulation(ground: Ground, asked: Asked, *, as_json: bool, out: Path | None) -> str:
    """Return what was simulated as text; the progress goes to standard error, JSON into the file `out`, a picture beside it.

    Raise `ValueError` for cases that make no sense, or a file that can't be one.
    """
    if out is not None:  # before all the work
        if out.is_dir() or out.suffix == PICTURE:
            raise ValueError(f"--out {out}: name the file for the JSON object, such as {out.with_suffix('.json')}")
        out.parent.mkdir(parents=True, exist_ok=True)
    keep_driver_small()  # as the driver of a run: what it takes of a core is told
    rows = shown_study(ground, asked)
    data = json_text(ground, rows)
    if out is not None:
        out.write_text(data + "\n", encoding="utf-8")
        out.with_suffix(PICTURE).write_text(study_svg(rows), encoding="utf-8")
    return data if as_json else f"{head(ground)}\n{table_text(rows)}"


def shown_study(ground: Ground, asked: Asked) -> list[Row]:
    """Return what each case measures, with a bar of its steps on standard error where that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("step {task.completed}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        shown = bar.add_task("")

        def on_case(number: int, total: int, case: Case) -> None:
            said = f"{number + 1} of {total}: {case.engines:,} engines, lag {case.max_lag}"
            bar.reset(shown, description=said)
            bar.refresh()
            if not sys.stderr.isatty():
                print(said, file=sys.stderr)

        def on_step(step: int, total: int) -> None:
            bar.update(shown, completed=step, total=total, refresh=True)

        return run_study(ground, asked, on_case=on_case, on_step=on_step)


def head(ground: Ground) -> str:
    """Return what the cases stand on, in lines."""
    speeds, work, places = ground.speeds, ground.work, ground.speeds.places
    lengths = f"{len(ground.groups)} recorded groups" if ground.groups else "drawn lengths"
    return "\n".join(
        (
            f"simulated: {work.stage} of {ground.loop.groups_per_step} groups of {ground.loop.group_size} a step "
            f"on {ground.engines} engines; "
            f"durations: {speeds.source}",
            f"an engine: {places} places, {1 / speeds.pass_s[1]:,.0f} tokens/s with one sequence, "
            f"{places / speeds.pass_s[places]:,.0f} with all; {work.answer_tokens:,.0f} tokens an answer, {lengths}",
            f"the learner: {1 / speeds.learn_token_s:,.0f} tokens/s; a push: {speeds.publish_s + speeds.load_s:.2f} s by "
            f"{speeds.transport}; an engine starts again in {speeds.start_s:.0f} s",
        )
    )


def json_text(ground: Ground, rows: list[Row]) -> str:
    """Return the cases as one JSON object."""
    found = {"stage": ground.work.stage, "durations": ground.speeds.source, "cases": [row.flat() for row in rows]}
    return json.dumps(found, indent=1, allow_nan=False)


def table_text(rows: list[Row]) -> str:
    """Return the table of the cases, without what is the same in all of them."""
    written = [cells(row) for row in rows]
    told = [
        at for at, name in enumerate(COLUMNS) if name not in SAME_LEFT_OUT or len({line[at] for line in written}) > 1
    ]
    table = Table(box=None, pad_edge=False)
    for at in told:
        table.add_column(COLUMNS[at], justify="left" if COLUMNS[at] == "limit" else "right", no_wrap=True)
    for line in written:
        table.add_row(*(line[at] for at in told))
    console = Console(width=WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join(
        [*lines, *(f"{row.case.engines:,} engines: {row.outcome.ended}" for row in rows if row.outcome.ended)]
    )


def cells(row: Row) -> list[str]:
    """Return the cells of a case, one a column."""
    case, found = row.case, row.outcome
    asked = [
        f"{case.engines:,}",
        f"{case.max_lag}",
        "recorded" if case.tail is None else f"{case.tail:g}",
        "-" if case.over_sampling is None else f"{case.over_sampling:g}",
        f"{case.deaths:g}",
    ]
    if not found.steps:
        return [*asked, *("-" for _ in COLUMNS[len(asked) : -2]), "gave up", "-"]
    return [
        *asked,
        f"{found.samples_per_s:,.2f}",
        f"{found.steps_per_hour:,.1f}",
        f"{found.step_s:,.1f}",
        f"{found.engines_idle:.0%}",
        f"{found.places_used:.0%}",
        f"{found.learner_idle:.0%}",
        f"{found.lag_mean:.2f}",
        f"{found.lag_max}",
        found.limited_by,
        f"{found.cpu_step_s:.2f}",
    ]

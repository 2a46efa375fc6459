"""The facts of a run drawn for a terminal."""

import shlex
from collections.abc import Iterator, Sequence
from math import isfinite

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from temper.orchestrator.run.screen import fit_text
from temper.orchestrator.session.status import ProcessStatus, RunStatus
from temper.orchestrator.tools.inspect.status.facts import RunFacts

SHOWN_TICKETS = 12
SHOWN_ALARMS = 3
GIB = 2**30


def facts_table(facts: RunFacts, *, width: int | None = None) -> RenderableType:
    """Return the facts for a terminal of this width, or for a file."""
    status = facts.status
    if status is None:
        return Text("starting" if facts.running else "not running, no status yet")
    lines = "\n".join(map(printable, _lines(facts, status)))
    parts: list[RenderableType] = [Text(lines if width is None else fit_text(lines, width))]
    if facts.running and status.processes:
        parts.append(_processes(status, width))
    if facts.running and status.tickets:
        parts.append(_tickets(status, width))
    return Group(*parts)


def printable(text: str) -> str:
    """Return a text with all terminal control characters escaped."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _lines(facts: RunFacts, status: RunStatus) -> Iterator[str]:
    silent = facts.silent_s or 0.0
    age = f"driver {status.pid}, {silent:.0f} s ago" if facts.running else f"not running for {_ago(silent)}"
    if facts.finished:
        yield f"finished {_ago(silent)} ago, all stages are done"
    else:
        where = f"{status.stage or 'between stages'} {_steps(status)}".strip()
        yield f"{where}, version {status.version} ({age})"
    if facts.outcome:
        yield facts.outcome
    if facts.running and (one := status.evaluation) is not None:
        yield f"evaluating {one.name}: {one.answered} of {one.tasks} tasks in {one.age_s:.0f} s"
    if facts.seconds_a_step is not None:
        left = "" if facts.seconds_left is None else f", about {_ago(facts.seconds_left)} left"
        yield f"{facts.seconds_a_step:.1f} s per step{left}"
    if facts.newest:
        yield ", ".join(
            f"{name} {f'{value:.4g}' if isfinite(value) else 'is not finite'}" for name, value in facts.newest.items()
        )
    if status.buffer and not facts.finished:
        yield f"groups: {', '.join(f'{state} {count}' for state, count in status.buffer.items())}"
    if (totals := facts.totals) is not None:
        parts = f"{totals.trained} trained + {totals.dropped} dropped + {totals.failed} failed + {totals.in_flight} in flight"
        yield f"tickets: {totals.issued} {'=' if totals.is_balanced else 'is not'} {parts}"
    if status.failures:
        yield f"failed episodes: {', '.join(f'{kind} {count}' for kind, count in sorted(status.failures.items()))}"
    if facts.memory:
        each = ", ".join(f"{one.name} {one.bytes / GIB:.2f}" for one in facts.memory)
        yield f"memory in GiB: {each}; free {facts.free_memory / GIB:.2f}"
    if status.faults:
        yield f"faults: {status.faults}, in the folder faults"
        yield from (f"  {line}" for line in facts.found[:SHOWN_ALARMS])
    yield from (f"alarm after step {one.step}: {one.text}" for one in facts.alarms[:SHOWN_ALARMS])
    yield from (f"event after step {one.step} of {one.stage}: {one.text}" for one in facts.events[:SHOWN_ALARMS])
    if facts.recorded:
        yield f"answers of {', '.join(facts.recorded)}: temper view {shlex.quote(str(facts.folder))}"


def _processes(status: RunStatus, width: int | None) -> RenderableType:
    """Return the processes. They have machines if some are not the driver's."""
    elsewhere = any(one.host not in (status.host, None) for one in status.processes)
    heads = ["process", "state", "pid", *(["machine"] if elsewhere else []), "answered", "progress", "at work"]
    rows = []
    for one in status.processes:
        place = (one.host or "",) if elsewhere else ()
        answered = "" if one.answered_s is None else f"{one.answered_s:.0f} s ago"
        rows.append((one.name, one.state, str(one.pid or ""), *place, answered, str(one.progress or 0), _work(one)))
    return _table(heads, rows, width)


def _work(one: ProcessStatus) -> str:
    facts = (
        one.doing,
        f"quiet {one.quiet_s:.0f} s" if one.quiet_s else "",
        f"groups {len(one.tickets)}" if one.tickets else "",
        f"restarts {one.restarts}" if one.restarts else "",
    )
    return ", ".join(filter(None, facts))


def _tickets(status: RunStatus, width: int | None) -> RenderableType:
    oldest = sorted(status.tickets, key=lambda ticket: -ticket.age_s)
    title = f"the oldest {SHOWN_TICKETS} of {len(oldest)} groups" if len(oldest) > SHOWN_TICKETS else None
    rows = [
        (f"#{ticket.number}", ticket.env, ticket.state, f"{ticket.age_s:.0f} s", ticket.worker or "")
        for ticket in oldest[:SHOWN_TICKETS]
    ]
    return _table(["group", "environment", "state", "age", "at"], rows, width, title=title)


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, *, title: str | None = None
) -> RenderableType:
    """Return a table whose last column wraps, or lines if a terminal is too narrow for the words of the table."""
    shown = [[printable(cell) for cell in row] for row in rows]
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for head in heads[:-1]:
        table.add_column(head, no_wrap=True)
    table.add_column(heads[-1], overflow="fold")
    for row in shown:
        table.add_row(*map(Text, row))
    *columns, last = zip(heads, *shown, strict=True)
    widths = [*(max(map(len, cells)) for cells in columns), max(map(len, " ".join(last).split()))]
    if width is None or sum(widths) + 2 * len(widths) + 1 <= width:  # two spaces between columns
        return table
    lines = [", ".join(f"{head} {cell}" for head, cell in zip(heads, row, strict=True) if cell) for row in shown]
    return Text(fit_text("\n".join([*([title] if title else []), *lines]), width))


def _steps(status: RunStatus) -> str:
    return f"{status.step}/{status.steps}" if status.steps else ""


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"

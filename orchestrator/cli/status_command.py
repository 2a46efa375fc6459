"""The commands `status` and `scale`: the live state of a run, from another terminal, and its number of rollout workers."""

import argparse
import json
import time
from dataclasses import asdict

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.cli.named_model import path_of_run
from orchestrator.run.folder import RunDir
from orchestrator.supervision.scale import ask_for_workers
from orchestrator.supervision.status import MemberStatus, RunStatus, read_status

REFRESH_S = 1.0
ANSWER_S = 20.0
"""How long `scale` waits for the run to take the request, in seconds."""
SHOWN_TICKETS = 12
STATUS_EPILOG = """examples:
  temper status runs/demo --watch
  temper status runs/demo --json | jq .members

The driver writes status.json every supervision.pulse_s seconds. "answered" is how long ago a process answered last, "progress"
counts what it got done, "quiet" is how long it has been at work without getting anything done. One that is silent or stalled
too long (supervision.silent_s, supervision.stalled_s) is looked at, ended and replaced; what was found lies in RUN/faults.
"""
SCALE_EPILOG = """example:
  temper scale runs/demo --rollout-workers 3

Workers that are added are given groups once they serve the current weights; those that are too many finish theirs and leave.
The next start of the run has rollout.workers of its configuration again.
"""


def add_status_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands to the parser; each sets `execute`, which takes the parsed arguments and gives the status."""
    raw = argparse.RawDescriptionHelpFormatter
    text = "show what a run is doing: stage, queue, groups in flight, workers and their health, failures"
    command = commands.add_parser("status", help=text, description=text, epilog=STATUS_EPILOG, formatter_class=raw)
    command.add_argument("run", type=path_of_run, metavar="RUN", help="a run's folder, such as runs/demo, or its name")
    how = command.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="as one JSON object, with `running`")
    how.add_argument("--watch", action="store_true", help="again every second, until Ctrl-C or the end of the run")
    command.set_defaults(execute=_status)
    text = "ask a run that is going on for another number of rollout workers, until it ends"
    command = commands.add_parser("scale", help=text, description=text, epilog=SCALE_EPILOG, formatter_class=raw)
    command.add_argument("run", type=path_of_run, metavar="RUN", help="a run's folder, such as runs/demo, or its name")
    command.add_argument("--rollout-workers", type=int, required=True, metavar="N", help="1 or more")
    command.set_defaults(execute=_scale)


def status_table(status: RunStatus, *, running: bool, now: float) -> RenderableType:
    """Return the state for a terminal. `now` is in seconds since 1970."""
    head = f"{status.stage or 'between stages'} {_steps(status)}, version {status.version}"
    age = (
        f"driver {status.pid}, {now - status.time:.0f} s ago"
        if running
        else f"not running since {_ago(now - status.time)}"
    )
    counts = [f"{state} {count}" for state, count in status.buffer.items()]
    failed = [f"{kind} {count}" for kind, count in sorted(status.failures.items())]
    lines = [f"{head} ({age})"]
    if running and (one := status.evaluation) is not None:
        lines.append(f"evaluating {one.name}: {one.answered} of {one.tasks} tasks answered in {one.age_s:.0f} s")
    lines += [f"groups: {', '.join(counts)}"] if counts else []
    lines += [f"failed episodes: {', '.join(failed)}"] if failed else []
    lines += [f"faults: {status.faults}, in the folder faults"] if status.faults else []
    parts: list[RenderableType] = [Text("\n".join(lines))]
    if running and status.members:
        parts.append(_members(status.members))
    if running and status.tickets:
        parts.append(_tickets(status))
    return Group(*parts)


def _members(members: tuple[MemberStatus, ...]) -> Table:
    table = Table("process", "state", "pid", "machine", "answered", "progress", "doing", "quiet", "groups", "restarts")
    for one in members:
        answered = "" if one.answered_s is None else f"{one.answered_s:.0f} s ago"
        quiet = "" if not one.quiet_s else f"{one.quiet_s:.0f} s"
        known = (str(one.pid or ""), one.host or "", answered, str(one.progress or 0), one.doing, quiet)
        table.add_row(one.name, one.state, *known, str(len(one.tickets)), str(one.restarts))
    return table


def _tickets(status: RunStatus) -> Table:
    oldest = sorted(status.tickets, key=lambda ticket: -ticket.age_s)
    title = f"the oldest {SHOWN_TICKETS} of {len(oldest)} groups" if len(oldest) > SHOWN_TICKETS else None
    table = Table("group", "environment", "state", "age", "at", title=title)
    for ticket in oldest[:SHOWN_TICKETS]:
        table.add_row(f"#{ticket.number}", ticket.env, ticket.state, f"{ticket.age_s:.0f} s", ticket.worker or "")
    return table


def _steps(status: RunStatus) -> str:
    return f"{status.step}/{status.steps}" if status.steps else ""


def _ago(seconds: float) -> str:
    minutes = seconds / 60
    return (
        f"{seconds:.0f} s"
        if minutes < 2
        else f"{minutes:.0f} minutes"
        if minutes < 120
        else f"{minutes / 60:.0f} hours"
    )


def _status(given: argparse.Namespace) -> int:
    folder = RunDir(given.run)
    if not given.run.is_dir():
        raise FileNotFoundError(f"{given.run} is no folder of a run")
    if given.json:
        status = read_status(folder.root)
        print(json.dumps({"running": folder.is_held()} | ({} if status is None else asdict(status))))
    elif given.watch:
        with Live(console=Console(), auto_refresh=False) as live:
            while folder.is_held():
                live.update(_shown(folder), refresh=True)
                time.sleep(REFRESH_S)
            live.update(_shown(folder), refresh=True)
    else:
        Console().print(_shown(folder))
    return 0


def _shown(folder: RunDir) -> RenderableType:
    status, running = read_status(folder.root), folder.is_held()
    if status is None:
        return Text("starting" if running else "not running; it has written no status yet")
    return status_table(status, running=running, now=time.time())


def _scale(given: argparse.Namespace) -> int:
    folder = RunDir(given.run)
    if given.rollout_workers < 1:
        raise ValueError(f"--rollout-workers {given.rollout_workers} must be at least 1")
    if not given.run.is_dir() or not folder.is_held():
        raise ValueError(f"{given.run} is not running; set rollout.workers in its configuration and start it")
    request, deadline = ask_for_workers(folder.root, given.rollout_workers), time.monotonic() + ANSWER_S
    while request.exists():
        if time.monotonic() > deadline:
            request.unlink(missing_ok=True)
            raise ValueError(
                f"{given.run} did not take the request within {ANSWER_S:.0f} s: it has not started or is ending"
            )
        time.sleep(0.1)
    print(f"{given.rollout_workers} rollout workers are asked for; temper status {given.run} shows them")
    return 0

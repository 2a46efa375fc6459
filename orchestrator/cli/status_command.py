"""The commands `status` and `scale`: the live state of a run, from another terminal, and its number of rollout workers."""

import argparse
import json
import time
from contextlib import suppress

from rich.console import Console, RenderableType
from rich.live import Live

from temper.orchestrator.cli.named_model import path_of_run, require_run
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.session.status import ask_for_workers, read_status
from temper.orchestrator.tools.inspect.status.facts import gather
from temper.orchestrator.tools.inspect.status.terminal import facts_table

REFRESH_S = 1.0
ANSWER_S = 20.0
"""How long `scale` waits for the run to take the request, in seconds."""
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


def _status(given: argparse.Namespace) -> int:
    folder = require_run(given.run)
    if given.json:
        print(json.dumps(gather(folder, now=time.time()).as_json()))
    elif given.watch:
        with suppress(KeyboardInterrupt), Live(console=Console(), auto_refresh=False) as live:  # Ctrl-C ends it
            while folder.is_held():
                live.update(_shown(folder), refresh=True)
                time.sleep(REFRESH_S)
            live.update(_shown(folder), refresh=True)
    else:
        Console().print(_shown(folder), soft_wrap=True)
    return 0


def _shown(folder: RunDir) -> RenderableType:
    return facts_table(gather(folder, now=time.time()))


def _scale(given: argparse.Namespace) -> int:
    folder = require_run(given.run)
    if given.rollout_workers < 1:
        raise ValueError(f"--rollout-workers {given.rollout_workers} must be at least 1")
    if not folder.is_held():
        raise ValueError(f"{given.run} is not running; set rollout.workers in its configuration and start it")
    request, deadline = ask_for_workers(folder.root, given.rollout_workers), time.monotonic() + ANSWER_S
    while request.exists():
        held = folder.is_held()
        if not held or time.monotonic() > deadline:
            request.unlink(missing_ok=True)
            raise ValueError(_untaken(folder) if held else f"{given.run} has ended before it took the request")
        time.sleep(0.1)
    print(f"{given.rollout_workers} rollout workers are asked for; temper status {given.run} shows them")
    return 0


def _untaken(folder: RunDir) -> str:
    """Say why a run that goes on may not have taken a request, with the last state that it wrote."""
    status = read_status(folder.root)
    last = "has written no status yet"
    if status is not None:
        last = f"was at step {status.step} of {status.steps} of {status.stage} {time.time() - status.time:.0f} s ago"
    return f"{folder.root} did not take the request within {ANSWER_S:.0f} s and {last}: it starts or ends; ask again"

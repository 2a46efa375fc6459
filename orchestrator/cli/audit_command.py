"""The command `audit`: whether what a run has left agrees."""

import argparse
import json

from rich.console import Console
from rich.table import Table

from temper.orchestrator.cli.named_model import path_of_run, require_run
from temper.orchestrator.tools.debug.audit.audit import Audit, audit

COLUMNS = (
    *("stage", "steps", "issued", "trained", "dropped", "failed"),
    *("in flight", "trajectories", "checkpoints"),
)
SHOWN = 50
"""How many findings are printed; --json has all."""
EPILOG = """examples:
  temper audit runs/demo
  temper audit runs/demo --json | jq '.findings[]'

Reads the folder alone: ledger.jsonl (the life of every ticket), metrics.jsonl, checkpoints and trajectories. The sums of the
ledger balance at every step; no ticket is trained twice, and none is lost; every step has one row of metrics; the groups
trained are the same in ledger, metrics and trajectories; each checkpoint is whole and holds the tickets that were in flight.
A run may be working meanwhile: its unfinished step is no fault. The exit status is 0 where all agrees, 1 where not.
"""


def add_audit_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    text = "check that the ledger, metrics, checkpoints and trajectories of a run agree"
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("audit", help=text, description=text, epilog=EPILOG, formatter_class=raw)
    command.add_argument("run", type=path_of_run, metavar="RUN", help="a run's folder, such as runs/demo, or its name")
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.set_defaults(execute=_audit)


def print_audit(found: Audit, console: Console) -> None:
    """Print what each stage has left, then what is wrong."""
    table = Table(box=None, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "stage" else "right", no_wrap=True)
    for one in found.stages:
        tickets = one.tickets
        sums = (
            [""] * 5
            if tickets is None
            else [str(n) for n in (tickets.issued, tickets.trained, tickets.dropped, tickets.failed, tickets.in_flight)]
        )
        checkpoints = ", ".join(map(str, one.checkpoints))
        table.add_row(one.name, str(one.steps), *sums, str(one.trajectories or ""), checkpoints)
    console.print(table)
    for finding in found.findings[:SHOWN]:
        about = f"{finding.stage}: " if finding.stage else ""
        console.print(f"{finding.place}: {about}{finding.text} [{finding.kind}]", markup=False, soft_wrap=True)
    if len(found.findings) > SHOWN:
        console.print(f"... and {len(found.findings) - SHOWN} more (--json has all)")
    state = "working" if found.working else "not running"
    verdict = f"{len(found.findings)} things do not agree" if found.findings else "everything agrees"
    console.print(f"{found.run} ({state}): {verdict}", soft_wrap=True)


def _audit(given: argparse.Namespace) -> int:
    found = audit(require_run(given.run.resolve()))
    if given.json:
        print(json.dumps(found.as_json(), indent=1))
    else:
        print_audit(found, Console(highlight=False))
    return 1 if found.findings else 0

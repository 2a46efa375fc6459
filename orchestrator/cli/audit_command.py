"""The command `debug audit`: whether the files of a run agree."""

import argparse
import json

from rich.console import Console

from temper.orchestrator.cli.named_model import path_of_run, require_run
from temper.orchestrator.pipeline.finding import Level
from temper.orchestrator.tools.debug.audit.audit import audit
from temper.orchestrator.tools.finding import findings_to_json

SHOWN = 50
"""How many findings are printed; --json has all."""
EPILOG = """examples:
  temper debug audit runs/demo
  temper debug audit runs/demo --json | jq '.findings[]'

Reads the folder only: ledger.jsonl, metrics.jsonl, evaluations, checkpoints and trajectories. The totals of the ledger balance
at every step; no ticket is trained twice or lost; every step has one row of metrics; ledger, metrics and trajectories have the
same groups; each checkpoint is whole and holds the tickets that were in flight. The exit status is 1 if something disagrees.
"""


def add_audit_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    text = "check that the ledger, metrics, checkpoints and trajectories of a run agree"
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("audit", help=text, description=text, epilog=EPILOG, formatter_class=raw)
    command.add_argument("run", type=path_of_run, metavar="RUN", help="a run's folder, such as runs/demo, or its name")
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.set_defaults(execute=_audit)


def _audit(given: argparse.Namespace) -> int:
    run = require_run(given.run.resolve())
    found = audit(run)
    data = findings_to_json(found)
    if given.json:
        print(json.dumps({"run": str(run.root)} | data, indent=1))
    else:
        console = Console(highlight=False)
        for finding in found[:SHOWN]:
            finding.print(console, width=max(14, len(finding.where) + 1))
        if len(found) > SHOWN:
            print(f"... and {len(found) - SHOWN} more (--json has all)")
        failed = data["failures"]
        print(f"{run.root}: {f'{failed} things do not agree' if failed else 'everything agrees'}")
    return 1 if any(finding.level is Level.FAILURE for finding in found) else 0

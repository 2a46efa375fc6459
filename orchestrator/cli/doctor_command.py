"""The command `doctor`: what may be wrong with this machine and a configuration, before a run."""

import argparse
import json

from rich.console import Console

from temper.orchestrator.cli.named_model import path_of_run
from temper.orchestrator.pipeline.finding import Finding, Level
from temper.orchestrator.tools.finding import counts_line, findings_to_json

TEXT = "look for what may be wrong with this machine and a configuration; nothing is started or downloaded, and nothing stays"
EPILOG = """examples:
  temper doctor                                       this machine alone
  temper doctor configs/demo.yaml
  temper doctor mine.yaml profile=gpu80 --json | jq '.findings[] | select(.level != "ok")'

Each check prints a line: ok, warning (a run can continue with it) or FAILURE (a run would end by it), with the remedy below.
The exit status is 1 if a line is a failure. Every run begins with the quick checks, and prints their warnings and failures. The
nodes of a cluster that RAY_ADDRESS names are asked, each by one task; their GPUs and memory are not examined.
"""


def add_doctor_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("doctor", help=TEXT, description=TEXT, epilog=EPILOG, formatter_class=raw)
    file = "a YAML file, or a run's folder or name; without it this machine alone"
    command.add_argument("config", nargs="?", type=path_of_run, metavar="FILE", help=file)
    command.add_argument(
        "overrides", nargs="*", metavar="FILE|key=value", help="more files and settings over those of FILE"
    )
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.set_defaults(execute=_execute)


def _execute(given: argparse.Namespace) -> int:
    # Imported here: what looks at models and configurations takes 10 s to import.
    from temper.orchestrator.tools.preflight.doctor.checks import examine
    from temper.orchestrator.tools.preflight.doctor.subject import read_subject

    console, found = Console(highlight=False, soft_wrap=True), list[Finding]()
    for one in examine(read_subject(given.config, given.overrides)):
        found.append(one)
        if not given.json:
            one.print(console)
    if given.json:
        print(json.dumps(findings_to_json(found), indent=1))
    else:
        console.print(counts_line(found))
    return 1 if any(one.level is Level.FAILURE for one in found) else 0

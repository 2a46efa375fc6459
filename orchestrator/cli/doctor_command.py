"""The command `doctor`: what may be wrong with this machine and a configuration, before a run."""

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from temper.orchestrator.cli.named_model import path_of_run
from temper.orchestrator.run.redaction import blanked

TEXT = "look for what may be wrong with this machine and a configuration; nothing is started or downloaded, and nothing stays"
EPILOG = """examples:
  temper doctor                                       this machine alone
  temper doctor configs/demo.yaml
  temper doctor mine.yaml profile=gpu80 --json | jq '.findings[] | select(.level != "ok")'

A line for each check: ok, warning (a run can go on with it) or FAILURE (a run would end by it), and under these what would mend
it. The exit status is 1 where a line is a failure. The checks that take a moment are made at the start of each run too, which
says their warnings and failures. The nodes of a cluster that RAY_ADDRESS names are asked for what they have, each by one task;
their GPUs and memory are not looked at.
"""
STYLES = {"ok": "green", "warning": "yellow", "failure": "red"}
WIDTH = 14


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

    console, found = Console(highlight=False, soft_wrap=True), []
    for one in examine(read_subject(given.config, given.overrides)):
        row = {key: blanked(value) if isinstance(value, str) else value for key, value in asdict(one).items()}
        found.append(row | {"level": one.level.value})
        if not given.json:
            _show(console, found[-1])
    counts = Counter(str(row["level"]) for row in found)
    if given.json:
        shown = [{key: row[key] for key in ("check", "level", "text", "remedy")} for row in found]
        json.dump(
            {"findings": shown, "failures": counts["failure"], "warnings": counts["warning"]}, sys.stdout, indent=1
        )
        print()
    else:
        bad = [f"{(count := counts[level])} {level}{'' if count == 1 else 's'}" for level in ("failure", "warning")]
        console.print(f"{', '.join(bad)}, {counts['ok']} ok")
    return 1 if counts["failure"] else 0


def _show(console: Console, row: dict[str, Any]) -> None:
    level = str(row["level"])
    mark = "FAILURE" if level == "failure" else level
    console.print(Text.assemble((f"{mark:<8}", STYLES[level]), f"{row['check']:<{WIDTH}}", str(row["text"])))
    if row["remedy"]:
        console.print(f"{'':<8}{'':<{WIDTH}}-> {row['remedy']}", markup=False)

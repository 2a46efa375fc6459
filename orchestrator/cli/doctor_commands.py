"""The commands `doctor` and `doctor --plan`: faults and resources of a run before it starts."""

import argparse
import json
from typing import TYPE_CHECKING

from rich.console import Console

from temper.orchestrator.cli.arguments import add_command, add_config, add_config_or_run, add_json
from temper.orchestrator.cli.quick_check import check_quickly
from temper.orchestrator.pipeline.finding import Finding, Level
from temper.orchestrator.run.screen import print_text

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

TEXT = "check this machine and a configuration. Nothing is started, downloaded or kept"
DOCTOR_EPILOG = """examples:
  temper doctor                                       only this machine
  temper doctor configs/demo.yaml
  temper doctor mine.yaml profile=gpu80 --json | jq '.findings[] | select(.level != "ok")'

Each check prints a line: ok, warning (a run continues) or FAILURE (a run would stop), with a remedy. The exit status is 1 after
a failure. Every run begins with the quick checks, and prints their warnings and failures. The nodes of a cluster in RAY_ADDRESS
are checked by one task each, without their GPUs and memory.
"""
PLAN_EPILOG = """examples:
  temper doctor --plan configs/demo.yaml
  temper doctor --plan configs/recipes/eight_gpus.yaml --gpus 8xH100-80G
  temper doctor --plan configs/recipes/eight_gpus.yaml --gpus 2x8xH200-141G rl.max_lag=0 --json
  temper doctor --plan configs/recipes/eight_gpus.yaml --gpus 8xH100-80G --assume answer_tokens=3000

A plan reads only the model's config.json, from a folder (model.path=DIR) or from the hub. Without --gpus it is for this cluster
or machine. It lists its assumptions at the end. docs/hardware.md describes the figures. The exit status is 1 if the run would
exceed a limit.
"""


def add_doctor_commands(commands: "Commands") -> None:
    """Add the commands to the parser."""
    command = add_command(commands, "doctor", _doctor, TEXT, epilog=DOCTOR_EPILOG)
    add_config_or_run(command, without="; without it only this machine")
    add_json(command)
    text = "calculate a run's memory, disk and time, and the limits that it would exceed"
    command = add_command(commands, "doctor --plan", _plan, text, epilog=PLAN_EPILOG)
    add_config(command)
    command.add_argument("--gpus", metavar="8xH100-80G", help="number and type of GPUs. 2x8xH100-80G is two machines")
    command.add_argument("--assume", action="append", default=[], metavar="NAME=VALUE", help="override an assumption")
    add_json(command)


def _doctor(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.finding import counts_line, findings_to_json
    from temper.orchestrator.tools.preflight.doctor.checks import examine
    from temper.orchestrator.tools.preflight.doctor.target import read_target

    console, found = Console(highlight=False), list[Finding]()
    for one in examine(read_target(given.config, given.overrides)):
        found.append(one)
        if not given.json:
            one.print(console)
    if given.json:
        print(json.dumps(findings_to_json(found), indent=1))
    else:
        print_text(console, counts_line(found))
    return 1 if any(one.level is Level.FAILURE for one in found) else 0


def _plan(given: argparse.Namespace) -> int:
    from temper.orchestrator.pipeline.estimate.cards import parse_gpus

    if given.gpus is not None:
        parse_gpus(given.gpus)
    check_quickly(given.config, given.overrides, data=False)
    from temper.orchestrator.pipeline.estimate.assumptions import Assumptions
    from temper.orchestrator.pipeline.estimate.limits import run_limits
    from temper.orchestrator.tools.preflight.plan.page import as_json, page
    from temper.orchestrator.tools.preflight.plan.plan import plan_of

    plan = plan_of(
        given.config, given.overrides, gpus=given.gpus, assumptions=Assumptions().with_overrides(given.assume)
    )
    if given.json:
        print(as_json(plan))
    else:
        print_text(Console(), "\n".join(page(plan)))
    return 0 if all(limit.holds for limit in run_limits(plan)) else 1

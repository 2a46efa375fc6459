"""The commands `doctor`, `doctor --plan` and `doctor --simulate`: faults, needs and speed of a run before it starts."""

import argparse
import json
from typing import TYPE_CHECKING

from rich.console import Console

from temper.orchestrator.cli.arguments import add_command, add_config, add_config_or_run, add_json
from temper.orchestrator.pipeline.finding import Finding, Level

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

TEXT = "look for what may be wrong with this machine and a configuration; nothing is started or downloaded, and nothing stays"
DOCTOR_EPILOG = """examples:
  temper doctor                                       this machine alone
  temper doctor configs/demo.yaml
  temper doctor mine.yaml profile=gpu80 --json | jq '.findings[] | select(.level != "ok")'

Each check prints a line: ok, warning (a run can continue with it) or FAILURE (a run would end by it), with the remedy below.
The exit status is 1 if a line is a failure. Every run begins with the quick checks, and prints their warnings and failures. The
nodes of a cluster that RAY_ADDRESS names are asked, each by one task; their GPUs and memory are not examined.
"""
PLAN_EPILOG = """examples:
  temper doctor --plan configs/demo.yaml
  temper doctor --plan configs/recipes/eight_gpus.yaml --gpus 8xH100-80G
  temper doctor --plan configs/recipes/eight_gpus.yaml --gpus 2x8xH200-141G rl.max_lag=0 --json
  temper doctor --plan configs/recipes/eight_gpus.yaml --gpus 8xH100-80G --assume answer_tokens=3000

A plan reads only config.json of the model, from a folder (model.path=DIR) or from the hub. Without --gpus it is of this cluster
or this machine. Its end lists the assumptions; docs/hardware.md describes the figures. The exit status is 1 if a limit would be
hit.
"""
SIMULATE_EPILOG = """examples:
  temper doctor --simulate configs/scaling.yaml --gpus 8xH100-80G
  temper doctor --simulate configs/scaling.yaml --gpus 8xH100-80G --engines 1,2,4,8,16 --max-lag 0,1,2
  temper doctor --simulate configs/scaling.yaml --gpus 8xH100-80G --engines 1,8,64,512 --grow
  temper doctor --simulate configs/scaling.yaml --gpus 8xH100-80G --tail 0 --json

Every combination of the values is simulated. Durations are planned for the named GPUs (as by `temper doctor
--plan`); the decisions are
those of the product's own loop, buffer and pool. docs/results.md describes the columns, and all that is not counted.
"""


def add_doctor_commands(commands: "Commands") -> None:
    """Add the commands to the parser."""
    command = add_command(commands, "doctor", _doctor, TEXT, epilog=DOCTOR_EPILOG)
    add_config_or_run(command, without="; without it this machine alone")
    add_json(command)
    text = "calculate a run's memory, disk and time, and the limits that it would exceed"
    command = add_command(commands, "doctor --plan", _plan, text, epilog=PLAN_EPILOG)
    add_config(command)
    command.add_argument("--gpus", metavar="8xH100-80G", help="GPUs by number and name; 2x8xH100-80G are two machines")
    command.add_argument(
        "--assume", action="append", default=[], metavar="NAME=VALUE", help="another value of an assumption"
    )
    add_json(command)
    _add_simulate(commands)


def _add_simulate(commands: "Commands") -> None:
    text = "simulate a run in virtual time: the effect of more engines, more lag and longer tails"
    command = add_command(commands, "doctor --simulate", _simulate, text, epilog=SIMULATE_EPILOG)
    add_config(command)
    command.add_argument("--gpus", metavar="8xH100-80G", help="GPUs by number and name, for planned durations")
    command.add_argument(
        "--assume", action="append", default=[], metavar="NAME=VALUE", help="another value of a plan's assumption"
    )
    command.add_argument(
        "--engines", type=_whole, metavar="N,N", help="numbers of engines; the configuration's if left out"
    )
    command.add_argument("--max-lag", type=_whole, metavar="N,N", help="values of max_lag")
    command.add_argument(
        "--tail", type=float, default=0.7, metavar="X", help="sigma of the logarithm of answers' lengths (default: 0.7)"
    )
    command.add_argument(
        "--grow", action="store_true", help="let the groups of a step and the learner's ranks grow with the engines"
    )
    command.add_argument(
        "--steps", type=int, default=8, metavar="N", help="steps that are counted, after those that fill (default: 8)"
    )
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of lengths (default: 0)")
    add_json(command)


def _whole(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def _doctor(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.finding import counts_line, findings_to_json
    from temper.orchestrator.tools.preflight.doctor.checks import examine
    from temper.orchestrator.tools.preflight.doctor.target import read_target

    console, found = Console(highlight=False, soft_wrap=True), list[Finding]()
    for one in examine(read_target(given.config, given.overrides)):
        found.append(one)
        if not given.json:
            one.print(console)
    if given.json:
        print(json.dumps(findings_to_json(found), indent=1))
    else:
        console.print(counts_line(found))
    return 1 if any(one.level is Level.FAILURE for one in found) else 0


def _plan(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
    from temper.orchestrator.tools.preflight.plan.limits import run_limits
    from temper.orchestrator.tools.preflight.plan.page import as_json, page
    from temper.orchestrator.tools.preflight.plan.plan import plan_of

    plan = plan_of(
        given.config, given.overrides, gpus=given.gpus, assumptions=Assumptions().with_overrides(given.assume)
    )
    print(as_json(plan) if given.json else "\n".join(page(plan)))
    return 0 if all(limit.holds for limit in run_limits(plan)) else 1


def _simulate(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
    from temper.orchestrator.tools.preflight.simulation.page import format_simulation
    from temper.orchestrator.tools.preflight.simulation.scenario import scenarios

    cases = scenarios(
        given.config,
        given.overrides,
        gpus=given.gpus,
        assumptions=Assumptions().with_overrides(given.assume),
        engines=given.engines,
        lags=given.max_lag,
        tail=given.tail,
        grow=given.grow,
        steps=given.steps,
        seed=given.seed,
    )
    print(format_simulation(cases, as_json=given.json))
    return 0

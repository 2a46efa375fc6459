"""The command `plan`: what a run would take, before it is run."""

import argparse
from pathlib import Path

from temper.orchestrator.cli.named_model import path_of_run

TEXT = "say what a run would take of memory, disk and time, and which limits it would meet"
EPILOG = """examples:
  temper plan configs/demo.yaml
  temper plan configs/recipes/eight_gpus.yaml --gpus 8xH100-80G
  temper plan configs/recipes/eight_gpus.yaml --gpus 2x8xH200-141G rl.max_lag=0 --json
  temper plan configs/recipes/eight_gpus.yaml --gpus 8xH100-80G --assume answer_tokens=3000
  temper plan configs/demo.yaml --probe
  temper plan --compare runs/demo --probe

Of the model only config.json is read, in a folder (model.path=DIR) or by its name on the hub. Without --gpus it is planned for
the cluster there is, or this machine. What is assumed stands at the end of a plan; docs/planning.md says how a figure is made.
The exit status is 1 where a limit would be hit.
"""


def add_plan_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("plan", help=TEXT, description=TEXT, epilog=EPILOG, formatter_class=raw)
    command.add_argument("config", nargs="?", type=Path, metavar="FILE", help="a YAML file; see configs/")
    command.add_argument("overrides", nargs="*", metavar="FILE|key=value", help="what lies over it, the last one wins")
    command.add_argument("--gpus", metavar="8xH100-80G", help="GPUs by number and name; 2x8xH100-80G are two machines")
    command.add_argument(
        "--assume", action="append", default=[], metavar="NAME=VALUE", help="another value of what is assumed"
    )
    command.add_argument("--price", type=float, metavar="PRICE", help="price of a GPU hour, for what all steps cost")
    command.add_argument(
        "--probe",
        action="store_true",
        help="measure the rates of this machine: starts engines and a learner for a minute",
    )
    command.add_argument(
        "--compare",
        type=path_of_run,
        metavar="RUN",
        help="set the plan of a run beside what it measured, with the errors",
    )
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.set_defaults(execute=_execute)


def _execute(given: argparse.Namespace) -> int:
    if (given.config is None) == (given.compare is None):
        raise ValueError(
            "give FILE to plan a run of it, or --compare RUN for one that was made: temper plan --compare RUN"
        )
    # Imported here: what it plans with takes 10 s to import.
    from temper.orchestrator.tools.preflight.plan.answer import answer_comparison, answer_plan
    from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions

    assumptions = Assumptions().given(given.assume)
    if given.compare is not None:
        print(answer_comparison(given.compare, assumptions=assumptions, probe=given.probe, as_json=given.json))
        return 0
    text, holds = answer_plan(
        given.config,
        given.overrides,
        gpus=given.gpus,
        assumptions=assumptions,
        price=given.price,
        probe=given.probe,
        as_json=given.json,
    )
    print(text)
    return 0 if holds else 1

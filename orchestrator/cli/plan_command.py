"""The command `doctor --plan`: memory, disk and time of a run, before it starts."""

import argparse
from pathlib import Path

TEXT = "calculate a run's memory, disk and time, and the limits that it would exceed"
EPILOG = """examples:
  temper doctor --plan configs/demo.yaml
  temper doctor --plan configs/recipes/eight_gpus.yaml --gpus 8xH100-80G
  temper doctor --plan configs/recipes/eight_gpus.yaml --gpus 2x8xH200-141G rl.max_lag=0 --json
  temper doctor --plan configs/recipes/eight_gpus.yaml --gpus 8xH100-80G --assume answer_tokens=3000

A plan reads only config.json of the model, from a folder (model.path=DIR) or from the hub. Without --gpus it is of this cluster
or this machine. Its end lists the assumptions; docs/planning.md describes the figures. The exit status is 1 if a limit would be
hit.
"""


def add_plan_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("doctor --plan", help=TEXT, description=TEXT, epilog=EPILOG, formatter_class=raw)
    command.add_argument("config", type=Path, metavar="FILE", help="a YAML file; see configs/")
    command.add_argument("overrides", nargs="*", metavar="FILE|key=value", help="what lies over it, the last one wins")
    command.add_argument("--gpus", metavar="8xH100-80G", help="GPUs by number and name; 2x8xH100-80G are two machines")
    command.add_argument(
        "--assume", action="append", default=[], metavar="NAME=VALUE", help="another value of an assumption"
    )
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.set_defaults(execute=_execute)


def _execute(given: argparse.Namespace) -> int:
    # Imported here: transformers takes 10 s to import.
    from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
    from temper.orchestrator.tools.preflight.plan.plan import page, plan_of

    plan = plan_of(given.config, given.overrides, gpus=given.gpus, assumptions=Assumptions().given(given.assume))
    print(plan.json() if given.json else "\n".join(page(plan)))
    return 0 if all(limit.holds for limit in plan.limits) else 1

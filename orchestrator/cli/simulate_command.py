"""The command `doctor --simulate`: a run on other numbers of engines, in virtual time."""

import argparse
from pathlib import Path

TEXT = "simulate a run in virtual time: the effect of more engines, more lag and longer tails"
EPILOG = """examples:
  temper doctor --simulate configs/scaling.yaml --gpus 8xH100-80G
  temper doctor --simulate configs/scaling.yaml --gpus 8xH100-80G --engines 1,2,4,8,16 --max-lag 0,1,2
  temper doctor --simulate configs/scaling.yaml --gpus 8xH100-80G --engines 1,8,64,512 --grow
  temper doctor --simulate configs/scaling.yaml --gpus 8xH100-80G --tail 0 --json

Every combination of the values is simulated. Durations are planned for the named GPUs (as by `temper doctor
--plan`); the decisions are
those of the product's own loop, buffer and pool. docs/scaling.md describes the columns, and all that is not counted.
"""


def add_simulate_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("doctor --simulate", help=TEXT, description=TEXT, epilog=EPILOG, formatter_class=raw)
    command.add_argument("config", type=Path, metavar="FILE", help="a YAML file; see configs/")
    command.add_argument(
        "overrides", nargs="*", default=[], metavar="FILE|key=value", help="what lies over it, the last one wins"
    )
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
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.set_defaults(execute=_execute)


def _whole(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def _execute(given: argparse.Namespace) -> int:
    # Imported here: transformers takes 10 s to import.
    from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
    from temper.orchestrator.tools.preflight.simulation.answer import answer, scenarios

    cases = scenarios(
        given.config,
        given.overrides,
        gpus=given.gpus,
        assumptions=Assumptions().given(given.assume),
        engines=given.engines,
        lags=given.max_lag,
        tail=given.tail,
        grow=given.grow,
        steps=given.steps,
        seed=given.seed,
    )
    print(answer(cases, as_json=given.json))
    return 0

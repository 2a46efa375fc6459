"""The command `simulate`: what a run would do on other numbers of engines, in virtual time."""

import argparse
from pathlib import Path

from temper.orchestrator.cli.named_model import path_of_run

TEXT = "simulate a run in virtual time: what more engines, more lag, longer tails and failures do to it"
EPILOG = """examples:
  temper simulate configs/scaling.yaml --gpus 8xH100-80G
  temper simulate configs/scaling.yaml --gpus 8xH100-80G --engines 1,2,4,8,16 --max-lag 0,1,2
  temper simulate configs/scaling.yaml --gpus 8xH100-80G --engines 1,8,64,512 --grow
  temper simulate configs/scaling.yaml --gpus 8xH100-80G --tail 0,0.5,1 --max-lag 2 --over-sampling 0.25,0.5,1
  temper simulate configs/scaling.yaml --gpus 8xH100-80G --engines 64 --grow --deaths 0,0.1,1 supervision.restarts=1000
  temper simulate configs/demo.yaml --measured runs/demo --max-lag 0,1,2 --json

Every combination of the values is simulated. Durations are planned for the GPUs that are named (as by `temper plan`), or those
that a run measured; the decisions are the product's own loop, buffer and pool. docs/scaling.md says what each column is, and
what they teach.
"""


def add_simulate_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("simulate", help=TEXT, description=TEXT, epilog=EPILOG, formatter_class=raw)
    command.add_argument("config", type=Path, metavar="FILE", help="a YAML file; see configs/")
    command.add_argument(
        "overrides", nargs="*", default=[], metavar="FILE|key=value", help="what lies over it, the last one wins"
    )
    command.add_argument("--gpus", metavar="8xH100-80G", help="GPUs by number and name, for planned durations")
    command.add_argument("--measured", type=path_of_run, metavar="RUN", help="take the durations and lengths of a run")
    command.add_argument(
        "--assume", action="append", default=[], metavar="NAME=VALUE", help="another value of what a plan assumes"
    )
    command.add_argument(
        "--engines", type=_whole, metavar="N,N", help="numbers of engines; the configuration's if left out"
    )
    command.add_argument("--max-lag", type=_whole, metavar="N,N", help="values of max_lag")
    command.add_argument(
        "--over-sampling", type=_numbers, metavar="X,X", help="values of over_sampling, for lags above 0"
    )
    command.add_argument(
        "--tail",
        type=_numbers,
        metavar="X,X",
        help="sigma of the logarithm of answers' lengths (default: 0.7, or a run's own)",
    )
    command.add_argument(
        "--deaths", type=_numbers, default=(0.0,), metavar="X,X", help="deaths of each engine an hour (default: 0)"
    )
    command.add_argument(
        "--restart-s", type=float, metavar="S", help="seconds in which a dead engine starts again (120)"
    )
    command.add_argument(
        "--grow", action="store_true", help="let the groups of a step and the learner's ranks grow with the engines"
    )
    command.add_argument(
        "--steps", type=int, default=8, metavar="N", help="steps that are counted, after those that fill (default: 8)"
    )
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of lengths and deaths (default: 0)")
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="write that object to a file, and a picture beside it (.svg)"
    )
    command.set_defaults(execute=_execute)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(one) for one in text.split(","))


def _whole(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def _execute(given: argparse.Namespace) -> int:
    if given.measured is not None and given.gpus is not None:
        raise ValueError(f"--measured takes the durations of a run, not of --gpus {given.gpus}; leave one of them out")
    # Imported here: what it plans with takes 10 s to import.
    from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
    from temper.orchestrator.tools.preflight.simulation.answer import answer_simulation
    from temper.orchestrator.tools.preflight.simulation.speeds import START_S
    from temper.orchestrator.tools.preflight.simulation.study import Asked, ground_of

    start_s = START_S if given.restart_s is None else given.restart_s
    if not 0 <= start_s < float("inf"):
        raise ValueError(f"--restart-s {start_s:g}: must be 0 or more seconds")
    ground = ground_of(
        given.config,
        given.overrides,
        gpus=given.gpus,
        assumptions=Assumptions().given(given.assume),
        measured=given.measured,
        start_s=start_s,
    )
    asked = Asked(
        engines=given.engines,
        lags=given.max_lag,
        over_sampling=given.over_sampling,
        tails=given.tail,
        deaths=given.deaths,
        grow=given.grow,
        steps=given.steps,
        seed=given.seed,
    )
    print(answer_simulation(ground, asked, as_json=given.json, out=given.out))
    return 0

"""The command `report --compare`: two evaluations task by task, or groups of runs against each other, over seeds."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from temper.orchestrator.cli.named_model import path_of_run

WIDTH = 130
"""Characters of a table that is not for a terminal."""
EPILOG = """example: two models on the tasks that both have answered; a run stands for its last evaluation
  temper report --compare runs/demo/eval/sft.json runs/demo/eval/rl.json
  temper report --compare runs/plain-1 runs/mixed-1 --out compare.json

The difference of accuracy has an interval over tasks, with a width even if no task differs, and a p value by the sign-flip
test of pairs; beside it stands how many tasks would show a difference of so much.

example: a curve of each seed, then the page
  temper run configs/demo.yaml name=plain-1 seed=1 'eval.budgets=[8,16,32]'
  temper run configs/demo.yaml name=mixed-1 seed=1 'eval.budgets=[8,16,32]' \\
      rl.thinking.budget=0.5 'rl.thinking.budgets=[8,16,32]'
  ... the same with seed=2 and seed=3
  temper report --compare --runs plain=runs/plain-1,runs/plain-2,runs/plain-3 \\
      --runs mixed=runs/mixed-1,runs/mixed-2,runs/mixed-3 --out compare.html

Runs are compared at the same budgets in tokens; those that were asked under others are refused. A run gets its curve, or
another one, afterwards: temper eval runs/plain-1/config.yaml 'eval.budgets=[8,16,32]' 'eval.budget_shares=[]'.
"""


def add_compare_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    text = "compare two evaluations task by task, or groups of runs by their accuracy at the same thinking budgets, over seeds"
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("report --compare", help=text, description=text, epilog=EPILOG, formatter_class=raw)
    pair = command.add_argument_group("two evaluations")
    pair.add_argument(
        "evaluations",
        nargs="*",
        type=path_of_run,
        metavar="EVALUATION",
        help="two of them, the earlier model first: a file eval/LABEL.json that an evaluation left, or a run by folder or name",
    )
    groups = command.add_argument_group("groups of runs")
    groups.add_argument(
        "--runs",
        action="append",
        default=[],
        metavar="NAME=RUN[,RUN...]",
        help="a group: the runs of one setting, its seeds, by folder or name; give it once for each group",
    )
    groups.add_argument(
        "--label", metavar="STAGE", help="compare after this stage, for example rl (default: the last curve)"
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="of two evaluations a JSON file (default: none); of groups the page, with a JSON file beside it (default: "
        "compare.html)",
    )
    command.set_defaults(execute=_compare)


def parse_groups(given: list[str]) -> dict[str, list[Path]]:
    """Return the folders of each group. Raise `ValueError` for one that is not of the form NAME=RUN[,RUN...]."""
    groups: dict[str, list[Path]] = {}
    for text in given:
        name, _, listed = text.partition("=")
        folders = [path_of_run(run) for run in listed.split(",") if run]
        if not name or not folders:
            raise ValueError(f"--runs {text!r} is not of the form NAME=RUN[,RUN...], for example plain=runs/a,runs/b")
        if name in groups:
            raise ValueError(
                f"--runs {name}=... is given twice; list the runs of a group after one another: {name}=A,B"
            )
        groups[name] = folders
    return groups


def _compare(given: argparse.Namespace) -> int:
    # Imported in here: numpy and matplotlib take half a second, which no other command has to wait for.
    if bool(given.evaluations) == bool(given.runs):
        raise ValueError(
            "give two evaluations, or groups of runs by --runs NAME=RUN[,RUN...]; see temper report --compare --help"
        )
    return _compare_groups(given) if given.runs else _compare_tasks(given)


def _compare_tasks(given: argparse.Namespace) -> int:
    if len(given.evaluations) != 2:
        raise ValueError(f"{len(given.evaluations)} evaluations are given; two are compared")
    if given.label is not None:
        raise ValueError(
            f"--label {given.label} is for groups (--runs); of two evaluations name eval/{given.label}.json"
        )
    if given.out is not None and given.out.suffix != ".json":
        raise ValueError(f"--out {given.out} must end in .json")
    from temper.orchestrator.run.folder import write_json
    from temper.orchestrator.tools.inspect.report.pairs import compare_places, pair_table

    pair = compare_places(*given.evaluations)
    print(f"first: {pair.first}\nsecond: {pair.second}")
    if pair.asked:
        print(f"asked differently: {'; '.join(pair.asked)}")
    Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH).print(pair_table(pair))
    for env, found in pair.envs.items():
        if found.left_out:
            print(f"{env}: left out are {found.left_out}")
    if given.out is not None:
        write_json(given.out, pair.as_json())
    return 0


def _compare_groups(given: argparse.Namespace) -> int:
    out = given.out or Path("compare.html")
    if out.suffix != ".html":
        raise ValueError(f"--out {out} must end in .html; the JSON goes beside it")
    from temper.orchestrator.tools.inspect.report.compare import read_curves, write_comparison

    named = parse_groups(given.runs)
    groups = {name: [read_curves(folder, label=given.label) for folder in folders] for name, folders in named.items()}
    print(f"{out} and {write_comparison(groups, out)}")
    return 0

"""The command `compare`: groups of runs against each other, over seeds."""

import argparse
from pathlib import Path

EPILOG = """example: a curve of each seed, then the page
  python -m orchestrator run configs/demo.yaml name=plain-1 seed=1 'eval.budget_shares=[0.25,0.5,1]'
  python -m orchestrator run configs/demo.yaml name=mixed-1 seed=1 'eval.budget_shares=[0.25,0.5,1]' \\
      rl.thinking.budget=0.5 'rl.thinking.budgets=[8,16,32]'
  ... the same with seed=2 and seed=3
  python -m orchestrator compare --runs plain=runs/plain-1,runs/plain-2,runs/plain-3 \\
      --runs mixed=runs/mixed-1,runs/mixed-2,runs/mixed-3 --out compare.html

Points of different runs are the same where their share of the median free thought is, else where their budget is.
A run that has no curve gets one afterwards: python -m orchestrator eval CONFIG name=NAME 'eval.budget_shares=[0.5]'.
"""


def add_compare_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    text = "compare groups of runs by their accuracy against the thinking budget, over seeds"
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("compare", help=text, description=text, epilog=EPILOG, formatter_class=raw)
    command.add_argument(
        "--runs",
        action="append",
        required=True,
        metavar="NAME=DIR[,DIR...]",
        help="a group: the folders of the runs of one setting, its seeds; give it once for each group",
    )
    command.add_argument(
        "--label", metavar="STAGE", help="compare after this stage, for example rl; else the last curve"
    )
    command.add_argument(
        "--out",
        type=Path,
        default=Path("compare.html"),
        metavar="FILE",
        help="the page; FILE with .json goes beside it",
    )
    command.set_defaults(execute=_compare)


def parse_groups(given: list[str]) -> dict[str, list[Path]]:
    """Return the folders of each group. Raise `ValueError` for one that is not of the form NAME=DIR[,DIR...]."""
    groups: dict[str, list[Path]] = {}
    for text in given:
        name, _, listed = text.partition("=")
        folders = [Path(folder) for folder in listed.split(",") if folder]
        if not name or not folders:
            raise ValueError(f"--runs {text!r} is not of the form NAME=DIR[,DIR...], for example plain=runs/a,runs/b")
        if name in groups:
            raise ValueError(
                f"--runs {name}=... is given twice; list the runs of a group after one another: {name}=A,B"
            )
        groups[name] = folders
    return groups


def _compare(given: argparse.Namespace) -> int:
    if given.out.suffix != ".html":
        raise ValueError(f"--out {given.out} must end in .html; the JSON goes beside it")
    # Imported here: matplotlib takes half a second, which no other command has to wait for.
    from orchestrator.reporting.compare import compare, read_group
    from orchestrator.reporting.compare_page import write_comparison

    named = parse_groups(given.runs)
    groups = [read_group(name, folders, label=given.label) for name, folders in named.items()]
    beside = write_comparison(compare(groups), given.out)
    print(f"{given.out} and {beside}")
    return 0

"""`python -m temper.orchestrator.tools.gpu_check`: every part of the check in turn, and the page of what was found."""

import argparse
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from temper.orchestrator.tools.gpu_check.machine import on_gpu, words
from temper.orchestrator.tools.gpu_check.page import page, said, section
from temper.orchestrator.tools.gpu_check.part import PARTS, Outcome, Part, replace_text
from temper.orchestrator.tools.gpu_check.running import run_apart, run_here

PAGE = Path(__file__).resolve().parents[3] / "docs" / "gpu.md"


def main(arguments: list[str] | None = None) -> int:
    """Run the check; returns 0 where every part came to its end and every figure holds, else 1."""
    parser = argparse.ArgumentParser(prog="python -m temper.orchestrator.tools.gpu_check", description=__doc__)
    names = [part.name for part in PARTS]
    parser.add_argument("--without-vllm", action="store_true", help="leave out the parts that need vLLM")
    parser.add_argument("--small", action="store_true", help="the small form, as on a machine without a GPU")
    parser.add_argument("--patience", type=float, default=1.0, metavar="TIMES", help="times as long deadlines")
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--page", type=Path, help="where the page is written (default: docs/gpu.md; with --only nowhere)"
    )
    parser.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    small = given.small or not on_gpu()
    if given.part is not None:
        return 0 if run_here(given.part, given.found, small=small) else 1
    if not given.patience > 0:
        parser.error(f"--patience {given.patience:g}: give a number above 0, such as 5")
    wanted = [part for part in PARTS if part.name in (given.only or names)]
    if given.without_vllm:
        if given.only and (stuck := [part.name for part in wanted if part.needs == "vllm"]):
            parser.error(f"--only {' '.join(stuck)} needs vLLM; leave --without-vllm out, or these parts")
        wanted = [part for part in wanted if part.needs != "vllm" and (given.only or _is_there(part))]
    file = given.page or (None if given.only else PAGE)
    return 0 if check(wanted, file=file, small=small, patience=given.patience) else 1


def _is_there(part: Part) -> bool:
    """Return whether the library that a part needs is installed."""
    return part.needs == "none" or find_spec(part.needs) is not None


def check(parts: Iterable[Part], *, file: Path | None, small: bool, patience: float = 1.0) -> bool:
    """Run parts, and write the page after each, or print what it says of them; returns whether all figures hold."""
    outcomes: list[Outcome] = []
    for part in parts:
        print(f"{part.name}: {part.title}, at most {patience * part.seconds:.0f} s", file=sys.stderr)
        outcomes.append(run_apart(part, small=small, patience=patience))
        print(f"{part.name}: {said(outcomes[-1])}", file=sys.stderr)
        if file is None:
            print(section(part, outcomes[-1]))
        else:
            replace_text(file, page(PARTS, outcomes, machine=words(), gpu=on_gpu() and not small))
    if file is not None:
        print(file)
    return all(outcome.holds for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())

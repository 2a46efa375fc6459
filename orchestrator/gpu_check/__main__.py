"""`python -m orchestrator.gpu_check`: every part of the check in turn, and the page of what was found."""

import argparse
import sys
from pathlib import Path

from orchestrator.gpu_check.machine import on_gpu, words
from orchestrator.gpu_check.page import page, said
from orchestrator.gpu_check.part import PARTS
from orchestrator.gpu_check.running import run_apart, run_here

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"


def main(arguments: list[str] | None = None) -> int:
    """Run the check; returns 0 where every part came to its end and every figure holds, else 1."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.gpu_check", description=__doc__)
    names = [part.name for part in PARTS]
    parser.add_argument("--without-vllm", action="store_true", help="only what needs torch and transformers alone")
    parser.add_argument("--small", action="store_true", help="the small form, as on a machine without a GPU")
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=f"of {', '.join(names)}")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page is written (default: docs/gpu.md)")
    parser.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    small = given.small or not on_gpu()
    if given.part is not None:
        return 0 if run_here(given.part, given.found, small=small) else 1
    outcomes = []
    for part in PARTS:
        if (part.vllm and given.without_vllm) or part.name not in (given.only or names):
            continue
        print(f"{part.name}: {part.title}, at most {part.seconds:.0f} s", file=sys.stderr)
        outcomes.append(run_apart(part, small=small))
        print(f"{part.name}: {said(outcomes[-1])}", file=sys.stderr)
    given.page.write_text(page(PARTS, outcomes, machine=words(), gpu=on_gpu() and not small), encoding="utf-8")
    print(given.page)
    return 0 if all(outcome.holds for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

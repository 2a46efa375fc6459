"""The command line: `python -m orchestrator COMMAND CONFIG [key=value ...]`."""

import argparse
import asyncio
import sys
from pathlib import Path

from learner.checkpoint import DamagedCheckpointError
from orchestrator.bench import bench, print_bench
from orchestrator.config import STAGES, load_config
from orchestrator.deadline import StuckError
from orchestrator.mixture import open_mixture
from orchestrator.pipeline import run_pipeline
from orchestrator.submit import submit

EPILOG = """examples:
  python -m orchestrator run configs/demo.yaml
  python -m orchestrator run configs/demo.yaml name=mine seed=2 rl.steps=50
  python -m orchestrator eval configs/demo.yaml eval.tasks=256
  python -m orchestrator submit configs/demo.yaml --address http://127.0.0.1:8265

A run lives in runs/<name>/. The same command continues a run that was interrupted and skips what is done.
"""
STAGE_HELP = {
    "init": "make a fresh model, or take the one that model.path names",
    "sft": "supervised fine-tuning",
    "rl": "reinforcement learning",
    "eval": "evaluate the newest model on held-out tasks",
    "report": "write report.html and report.json",
}


def parser() -> argparse.ArgumentParser:
    """The argument parser, with help that teaches."""
    root = argparse.ArgumentParser(
        prog="python -m orchestrator",
        description="Post-train a reasoning language model across many environments at once.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    helps = {"run": "all stages that the configuration lists, in order"} | STAGE_HELP
    helps["bench"] = "measure the engines and the loop with the model of a configuration"
    helps["submit"] = "submit a run to a Ray cluster and follow its log"
    for name, text in helps.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("config", type=Path, help="a YAML file; see configs/")
        command.add_argument(
            "overrides", nargs="*", metavar="key=value", help="e.g. seed=2 rl.optim.learning_rate=1e-4"
        )
        if name == "submit":
            command.add_argument("--address", help="the cluster's job server; without it a local cluster is started")
    return root


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 a fault, 2 a mistake in the input, 130 stopped as asked."""
    given = parser().parse_args(arguments)
    try:
        config = load_config(given.config, given.overrides)
        if given.command == "submit":
            return submit(given.config, given.overrides, given.address)
        if given.command == "bench":
            print_bench(asyncio.run(bench(config, open_mixture(config.envs, {}, split="train", seed=config.seed))))
            return 0
        only = given.command if given.command in STAGES else None
        return asyncio.run(run_pipeline(config, only=only))
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (StuckError, DamagedCheckpointError, OSError, RuntimeError) as error:
        print(f"fault: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""The command line: `python -m orchestrator COMMAND ...`."""

import argparse
import sys
from pathlib import Path

from orchestrator.compare_command import add_compare_command
from orchestrator.env_commands import add_env_commands
from orchestrator.redaction import blanked
from orchestrator.serve_command import add_serve_command

EPILOG = """examples:
  python -m orchestrator run configs/demo.yaml
  python -m orchestrator run configs/demo.yaml name=mine seed=2 rl.steps=50
  python -m orchestrator eval configs/demo.yaml eval.tasks=256
  python -m orchestrator submit configs/demo.yaml --address http://127.0.0.1:8265
  python -m orchestrator grade --env math --tasks gsm8k.jsonl --responses said.jsonl --out graded.jsonl
  python -m orchestrator serve runs/demo
  python -m orchestrator envcheck --env code --tasks humaneval.jsonl

A run lives in runs/<name>/. The same command continues a run that was interrupted and skips what is done.
"""
RUN_COMMANDS = {
    "run": "all stages that the configuration lists, in order",
    "init": "make a fresh model, or take the one that model.path names",
    "sft": "supervised fine-tuning",
    "self_sft": "supervised fine-tuning on the model's own right answers",
    "dpo": "direct preference optimisation on pairs of answers",
    "rl": "reinforcement learning",
    "distill": "on-policy distillation from a teacher",
    "eval": "evaluate the newest model on held-out tasks",
    "report": "write report.html and report.json",
    "bench": "measure the engines and the loop with the model of a configuration",
    "bench-growth": "measure how the cost grows with answers, workers, model size and context; figures in runs/bench",
    "submit": "submit a run to a Ray cluster and follow its log",
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
    for name, text in RUN_COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("config", type=Path, help="a YAML file; see configs/")
        command.add_argument(
            "overrides", nargs="*", metavar="key=value", help="e.g. seed=2 rl.optim.learning_rate=1e-4"
        )
        command.set_defaults(execute=_run_command)
        if name == "submit":
            command.add_argument("--address", help="the cluster's job server; without it a local cluster is started")
    add_env_commands(commands)
    add_compare_command(commands)
    add_serve_command(commands)
    return root


def _run_command(given: argparse.Namespace) -> int:
    # Imported here: Ray, DeepSpeed, MLflow and transformers take 10 s to import, and grading needs none of them.
    from orchestrator.run_commands import execute

    return execute(given)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 a fault, 2 a mistake in the input, 130 stopped as asked."""
    given = parser().parse_args(arguments)
    try:
        status: int = given.execute(given)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {blanked(str(error))}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())

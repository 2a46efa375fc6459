"""The command line: `temper COMMAND ...`, or `python -m orchestrator COMMAND ...` in the repository."""

import argparse
import os
import sys
from pathlib import Path

from orchestrator.cli.audit_command import add_audit_command
from orchestrator.cli.compare_command import add_compare_command
from orchestrator.cli.config_command import add_config_command
from orchestrator.cli.env_commands import add_env_commands
from orchestrator.cli.eval_command import add_eval_command, is_override
from orchestrator.cli.named_model import path_of_run
from orchestrator.cli.presets_command import add_presets_command
from orchestrator.cli.serve_command import add_serve_command
from orchestrator.cli.status_command import add_status_commands
from orchestrator.cluster.module_search import FOLDER, search_last
from orchestrator.run.redaction import blanked
from orchestrator.stages.registry import HELP

EPILOG = """examples:
  python -m orchestrator run configs/demo.yaml
  python -m orchestrator run configs/demo.yaml name=mine seed=2 rl.steps=50
  python -m orchestrator run configs/recipes/one_gpu.yaml profile=gpu80
  python -m orchestrator run configs/demo.yaml longer.yaml seed=2     (files lie over one another, the last one wins)
  python -m orchestrator eval configs/demo.yaml eval.tasks=256
  python -m orchestrator eval models/mine --preset gsm8k --greedy
  python -m orchestrator eval models/mine --env math --data gsm8k_test.jsonl --greedy
  python -m orchestrator fork runs/demo --from rl/25 name=slow rl.optim.learning_rate=1e-5
  python -m orchestrator config configs/demo.yaml --explain rl.max_lag
  python -m orchestrator status runs/demo --watch
  python -m orchestrator scale runs/demo --rollout-workers 3
  python -m orchestrator audit runs/demo
  python -m orchestrator submit configs/demo.yaml --address http://127.0.0.1:8265
  python -m orchestrator grade --env math --data gsm8k.jsonl --responses said.jsonl --out graded.jsonl
  python -m orchestrator serve runs/demo
  python -m orchestrator envcheck --env code --data humaneval.jsonl

A run lives in runs/<name>/. The same command continues a run that was interrupted and skips what is done.

What depends on the hardware (precision, memory, lengths, batches, learning rates) is chosen where it is not given, for what
the cluster has (profile=auto) or for what is named (profile=cpu, gpu24, gpu80, ...); docs/hardware.md has the rules.

What a continued run may change depends on the setting. Memory, time-outs, workers, threads, intervals and tracking are
free. Steps, learning rates, shares and lengths may change, and metrics.jsonl, the tracker and the report record it. What
is trained, on which data, by which loss is what the run is: fork it, or choose another name=.
A stage may stand twice in `stages`: the second `rl` is rl-2, and `- rl: {name: rl_tools, steps: 100}` has settings of its
own. The command line gives these as rl-2.steps=100 or rl_tools.steps=100, and rl.steps is for all of them.
"""
FORK_EPILOG = """examples:
  python -m orchestrator fork runs/demo --from rl/25 name=slow rl.optim.learning_rate=1e-5
  python -m orchestrator fork runs/demo --from sft name=dpo 'stages=[init,sft,dpo,eval]' dpo.data=pairs.jsonl

The new run has the settings of the old one with key=value on top. It begins with a copy of the checkpoint, which is
verified first, and runs the stages that are left; `python -m orchestrator run runs/NAME/config.yaml` continues it. The
stage of the checkpoint goes on, with its optimiser, where its steps are more than those of the checkpoint; with as many
the next stage begins. Data, environments, seed and loss may change; the model may not, nor what the optimiser's state
belongs to (its kind, adapters, frozen parameters) where the stage goes on. manifest.json, metrics.jsonl, the tracker and
the report say where the run comes from.
"""
RUN_COMMANDS = {
    "run": "all stages that the configuration lists, in order",
    **HELP,
    "bench": "measure the engines and the loop with the model of a configuration",
    "bench-growth": "measure how the cost grows with answers, workers, model size and context; figures in runs/bench",
    "submit": "submit a run to a Ray cluster and follow its log",
}


def parser() -> argparse.ArgumentParser:
    """Return the argument parser, with help that teaches."""
    root = argparse.ArgumentParser(
        prog="temper",
        description="Post-train a reasoning language model across many environments at once.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in RUN_COMMANDS.items():
        if name == "eval":
            add_eval_command(commands, text=text)
            continue
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("config", type=Path, help="a YAML file; see configs/")
        command.add_argument(
            "overrides",
            nargs="*",
            metavar="FILE|key=value",
            help="what lies over it: more YAML files, settings such as seed=2 rl.optim.learning_rate=1e-4; the last one wins",
        )
        command.set_defaults(execute=_run_command)
        if name == "submit":
            command.add_argument("--address", help="the cluster's job server; without it a local cluster is started")
    fork = commands.add_parser(
        "fork",
        help="begin a new run at a checkpoint of another one",
        description="Begin a new run at a checkpoint of another one.",
        epilog=FORK_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fork.add_argument(
        "source", type=path_of_run, metavar="RUN", help="the other run, by its folder, such as runs/demo, or its name"
    )
    fork.add_argument(
        "--from", dest="at", required=True, metavar="STAGE[/STEP]", help="its checkpoint, e.g. rl/150; rl is the newest"
    )
    fork.add_argument(
        "overrides", nargs="+", metavar="key=value", help="the new run's name=, and settings that shall be others"
    )
    fork.set_defaults(execute=_run_command)
    add_config_command(commands)
    add_audit_command(commands)
    add_env_commands(commands)
    add_presets_command(commands)
    add_compare_command(commands)
    add_serve_command(commands)
    add_status_commands(commands)
    return root


def _run_command(given: argparse.Namespace) -> int:
    # Imported here: Ray, DeepSpeed, MLflow and transformers take 10 s to import, and grading needs none of them.
    from orchestrator.cli.run_commands import execute

    return execute(given)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 a fault, 2 a mistake in the input, 3 given up because
    something hung or died too often, 130 stopped as asked."""
    search_last(os.environ.get(FOLDER, os.getcwd()))
    commands = parser()
    given, later = commands.parse_known_args(arguments)
    if later and not ("overrides" in given and all(map(is_override, later))):
        commands.error(f"unrecognized arguments: {' '.join(later)}")
    if later:  # settings behind options
        given.overrides = [*given.overrides, *later]
    try:
        status: int = given.execute(given)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {blanked(str(error))}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())

"""What the commands that take a run's configuration are told: their arguments, and help that teaches by examples."""

import argparse
from pathlib import Path

from temper.orchestrator.cli.eval_command import add_eval_command
from temper.orchestrator.cli.named_model import path_of_run
from temper.orchestrator.cli.screen_options import add_dry_run, add_screen_options
from temper.orchestrator.stages.registry import HELP

RUN_EPILOG = """examples:
  temper {name} configs/demo.yaml
  temper {name} configs/demo.yaml --dry-run                           what it would do; nothing is started or written
  temper {name} configs/demo.yaml name=mine seed=2 {more}
  temper {name} configs/demo.yaml longer.yaml gpu.yaml seed=2         files lie over one another, the last one wins
  temper {name} configs/demo.yaml envs.math.data=gsm8k_train.jsonl    relative paths are those of the current folder

{what}A file that lies over another gives only what it changes: mappings are merged, lists (such as stages) replaced.
"""
CONTINUES = """The run lives in runs/NAME/. The same command continues it after Ctrl-C or a fault, and skips what is done.
"""
COMPARES = """`temper report --compare` compares two evaluations, or groups of runs.
"""
SUBMIT_EPILOG = """examples:
  temper submit configs/demo.yaml                                     on a cluster of this machine, which ends with the job
  temper submit configs/demo.yaml --address http://127.0.0.1:8265 runs_dir=/shared/runs

Ctrl-C stops the job, which saves before; the same command continues it. What must lie where is said in docs/clusters.md.
"""
FORK_EPILOG = """examples:
  temper fork runs/demo --from rl/25 name=slow rl.optim.learning_rate=1e-5
  temper fork runs/demo --from rl/25 name=slow --dry-run              what it would do; nothing is started or written
  temper fork runs/demo --from sft name=dpo 'stages=[init,sft,dpo,eval]' dpo.data=pairs.jsonl

The new run has the settings of the old one with key=value on top. It begins with a copy of the checkpoint, which is
verified first, and runs the stages that are left; `temper run runs/NAME/config.yaml` continues it. The
stage of the checkpoint goes on, with its optimiser, where its steps are more than those of the checkpoint; with as many
the next stage begins. Data, environments, seed and loss may change; the model may not, nor what the optimiser's state
belongs to (its kind, adapters, frozen parameters) where the stage goes on. manifest.json, metrics.jsonl, the tracker and
the report say where the run comes from.
"""


def add_run_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands to the parser; each sets `execute`, which takes the parsed arguments and gives the status."""
    text = "all stages that the configuration lists, in order, or one of them"
    run = _add(commands, "run", text, epilog=RUN_EPILOG.format(name="run", more="rl.steps=50", what=CONTINUES))
    stages = "; ".join(f"{name}: {text}" for name, text in HELP.items())
    run.add_argument(
        "--stage", choices=list(HELP), metavar="STAGE", help=f"only its first instance that is left ({stages})"
    )
    add_eval_command(commands, text=HELP["eval"])
    report = _add(
        commands, "report", HELP["report"], epilog=RUN_EPILOG.format(name="report", more="runs_dir=mine", what=COMPARES)
    )
    report.set_defaults(stage="report")
    for command in (run, report):
        _add_options(command)
    submit = _add(commands, "submit", "submit a run to a Ray cluster and follow its log", epilog=SUBMIT_EPILOG)
    submit.set_defaults(dry_run=False, json=False, quiet=False, log_level=None)
    submit.add_argument("--address", help="the cluster's job server; without it a local cluster is started")
    _add_fork(commands)


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str, *, epilog: str
) -> argparse.ArgumentParser:
    """Add a command that takes a configuration and what lies over it."""
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser(name, help=text, description=text, epilog=epilog, formatter_class=raw)
    command.add_argument("config", type=Path, metavar="FILE", help="a YAML file; see configs/")
    command.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="FILE|key=value",
        help="what lies over it, the last one wins: more YAML files, settings such as rl.optim.learning_rate=1e-4",
    )
    command.set_defaults(execute=_execute)
    return command


def _add_options(command: argparse.ArgumentParser) -> None:
    add_dry_run(command)
    command.add_argument("--json", action="store_true", help="with --dry-run: as one JSON object")
    add_screen_options(command)


def _add_fork(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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
        "overrides",
        nargs="+",
        metavar="FILE|key=value",
        help="the new run's name=, and settings that shall be others",
    )
    _add_options(fork)
    fork.set_defaults(execute=_execute)


def _execute(given: argparse.Namespace) -> int:
    # Imported here: Ray, DeepSpeed, MLflow and transformers take 10 s to import, and grading needs none of them.
    from temper.orchestrator.cli.run_commands import execute

    return execute(given)

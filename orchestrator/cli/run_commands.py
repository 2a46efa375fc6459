"""The commands of a run's configuration: `run`, `report`, `submit` and `fork`."""

import argparse
import asyncio
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console

from temper.orchestrator.cli.arguments import (
    add_command,
    add_config,
    add_json,
    add_screen_options,
    path_of_run,
    set_log_level,
)
from temper.orchestrator.cli.quick_check import check_quickly
from temper.orchestrator.cluster.head import require_head
from temper.orchestrator.config.text import RawConfig
from temper.orchestrator.pipeline.config import load_unresolved_config, make_config
from temper.orchestrator.run.screen import print_text
from temper.orchestrator.stages.registry import all_stages

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands
    from temper.orchestrator.pipeline.preview import Preview

RUN_EPILOG = """examples:
  temper {name} configs/demo.yaml
  temper {name} configs/demo.yaml --dry-run                           print the plan, start nothing
  temper {name} configs/demo.yaml name=mine seed=2 {more}
  temper {name} configs/demo.yaml longer.yaml gpu.yaml seed=2         later files override earlier ones
  temper {name} configs/demo.yaml envs.math.data=gsm8k_train.jsonl    relative to the current folder

{what}A later file has only its changes: mappings are merged, lists (such as stages) are replaced.
"""
CONTINUES = """The run's files are in runs/NAME/. Rerun the same command to resume after Ctrl-C or an error.
"""
COMPARES = """`temper report --compare` compares two evaluations, or groups of runs.
"""
SUBMIT_EPILOG = """examples:
  temper submit configs/demo.yaml                                     on a local cluster that ends with the job
  temper submit configs/demo.yaml --address http://127.0.0.1:8265 runs_dir=/shared/runs

Ctrl-C stops the job after a save. Rerun the same command to resume. docs/clusters.md lists the required storage.
"""
FORK_EPILOG = """examples:
  temper fork runs/demo --from rl/25 name=slow rl.optim.learning_rate=1e-5
  temper fork runs/demo --from rl/25 name=slow --dry-run              print the plan, start nothing
  temper fork runs/demo --from sft name=dpo 'stages=[init,sft,dpo,eval]' dpo.data=pairs.jsonl

The new run has the settings of the old one, overridden by key=value. It begins with a verified copy of the checkpoint and runs
the remaining stages. Resume it with `temper run runs/NAME/config.yaml`. The stage of the checkpoint continues with its
optimizer if it has steps left. Otherwise the next stage begins. Data, environments, seed and loss may change. The model may
not, and a continued stage keeps optimizer kind, adapters and frozen parameters. manifest.json, metrics.jsonl, the tracker and
the report record the origin.
"""
OVER = "YAML files and settings such as rl.optim.learning_rate=1e-4, later ones win"
NOTHING = "nothing was started, written or downloaded (--dry-run)"


def add_run_commands(commands: "Commands") -> None:
    """Add the commands to the parser."""
    text = "all stages that the configuration lists, in order, or one of them"
    epilog = RUN_EPILOG.format(name="run", more="rl.steps=50", what=CONTINUES)
    run = add_command(commands, "run", _execute, text, epilog=epilog)
    add_config(run, over=OVER)
    stages = "; ".join(f"{name}: {stage.help}" for name, stage in all_stages().items())
    run.add_argument(
        "--stage", choices=list(all_stages()), metavar="STAGE", help=f"only its first instance that is left ({stages})"
    )
    epilog = RUN_EPILOG.format(name="report", more="runs_dir=mine", what=COMPARES)
    report = add_command(commands, "report", _execute, all_stages()["report"].help, epilog=epilog)
    add_config(report, over=OVER)
    report.set_defaults(stage="report")
    text = "submit a run to a Ray cluster and follow its log"
    submit = add_command(commands, "submit", _submit, text, epilog=SUBMIT_EPILOG)
    add_config(submit, over=OVER)
    submit.add_argument("--address", help="job server of the cluster (default: start a local cluster)")
    text = "start a new run at a checkpoint of another run"
    described = "Start a new run at a checkpoint of another run."
    fork = add_command(commands, "fork", _execute, text, epilog=FORK_EPILOG, description=described)
    fork.add_argument(
        "source", type=path_of_run, metavar="RUN", help="the other run, by its folder, such as runs/demo, or its name"
    )
    fork.add_argument(
        "--from", dest="at", required=True, metavar="STAGE[/STEP]", help="checkpoint, e.g. rl/150, or rl for the newest"
    )
    settings = "the new run's name=, and settings that shall be others"
    fork.add_argument("overrides", nargs="+", metavar="FILE|key=value", help=settings)
    fork.set_defaults(stage=None)
    for command in (run, report, fork):
        add_json(command, "with --dry-run: print one JSON object")
        add_screen_options(command)


def _execute(given: argparse.Namespace) -> int:
    if given.json and not given.dry_run:
        raise ValueError("--json needs --dry-run; for a running run use `temper status RUN --json`")
    forks = given.command == "fork"
    settings: RawConfig = {}
    if not forks:
        settings = check_quickly(given.config, given.overrides, data=given.stage != "report", starts=not given.dry_run)
    set_log_level(given.log_level)
    if given.dry_run:
        from temper.orchestrator.pipeline.preview import preview_of, preview_of_fork

        if forks:
            return show_dry_run(preview_of_fork(given.source, given.at, given.overrides), as_json=given.json)
        return show_dry_run(preview_of(settings, only=given.stage), as_json=given.json)
    return _start(given, settings)


def _start(given: argparse.Namespace, settings: RawConfig) -> int:
    """Run a fork, or the stages of these settings. The imports take seconds."""
    if given.stage != "report":
        require_head(os.environ.get("RAY_ADDRESS", "local"))
    from temper.orchestrator.pipeline.fork import fork
    from temper.orchestrator.pipeline.gguf_model import with_converted_model
    from temper.orchestrator.pipeline.profiles.resolve import resolve_profile
    from temper.orchestrator.pipeline.runner import run_pipeline
    from temper.orchestrator.tools.preflight.doctor.checks import start_notes

    if given.command == "fork":
        config = fork(given.source, given.at, given.overrides)
        print(f"{config.runs_dir}/{config.name}: begins at {given.at} of {given.source}", file=sys.stderr)
    else:
        config = make_config(resolve_profile(with_converted_model(settings)))
    return asyncio.run(run_pipeline(config, only=given.stage, quiet=given.quiet, notes=start_notes(config)))


def show_dry_run(preview: "Preview", *, as_json: bool) -> int:
    """Print a preview. Return the exit status."""
    from temper.orchestrator.pipeline.preview import lines

    if as_json:
        print(json.dumps(asdict(preview), default=str, indent=1))
    else:
        print_text(Console(), "\n".join([*lines(preview), NOTHING]))
    return 0


def _submit(given: argparse.Namespace) -> int:
    from temper.orchestrator.cli.submit import submit

    load_unresolved_config(given.config, given.overrides)  # reports its errors, and the job asks its cluster
    return submit(given.config, given.overrides, given.address)

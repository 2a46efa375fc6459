"""The commands that look at runs: `status`, `scale`, `view`, `ui` and `report --compare`."""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.live import Live

from temper.orchestrator.cli.arguments import add_command, add_run, path_of_run, require_run
from temper.orchestrator.run.folder import RunDir, write_json, write_whole
from temper.orchestrator.run.redaction import blanked
from temper.orchestrator.session.status import ask_for_workers, read_status
from temper.orchestrator.tools.inspect.status.facts import gather
from temper.orchestrator.tools.inspect.status.terminal import facts_table
from temper.orchestrator.tracking.mlflow.dashboard import runs_page, serve
from temper.orchestrator.tracking.mlflow.tracker import find_store

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

REFRESH_S = 1.0
ANSWER_S = 20.0
"""How long `scale` waits for the run to take the request, in seconds."""
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
"""Variables one of which is set where a browser would be seen."""
WIDTH = 130
STATUS_EPILOG = """examples:
  temper status runs/demo --watch
  temper status runs/demo --json | jq .processes

The driver writes status.json every supervision.heartbeat_s seconds. "answered" is the age of the last answer of a process,
"progress" counts its finished work, "quiet" is the time since the last progress while it works. A process that is silent or
stalled too long (supervision.silent_s, supervision.stalled_s) is diagnosed, ended and replaced. The findings are in RUN/faults.
"""
SCALE_EPILOG = """example:
  temper scale runs/demo --rollout-workers 3

Workers that are added are given groups once they serve the current weights; those that are too many finish theirs and leave.
The next start of the run has rollout.workers of its configuration again.
"""
VIEW_EPILOG = """examples:
  temper view runs/demo                                           serve it on 127.0.0.1 until Ctrl-C
  temper view runs/demo --out step.html --step 30                 one file, which needs no server
  temper view runs/demo --out rl.html --evaluation rl --against sft

Shows the answers that steps and evaluations have left in RUN/trajectories: a table to filter, the answers to one task side by
side, every token with its log-probabilities, advantage, weight version and why it carries no loss, and why an answer got its
reward. docs/viewing.md says how to read it and what a run records. A step is N or STAGE/N; an evaluation is what it evaluates
(sft, rl), or STAGE/N between steps; without either it is the newest step.
"""
UI_EPILOG = """examples:
  temper ui                                     the runs of runs/mlflow.db, on http://127.0.0.1:5000
  temper ui --runs-dir /shared/runs --port 5001
  temper ui --experiment night                  another experiment than that of the newest run
  MLFLOW_TRACKING_URI=http://head:5000 temper ui    the page of a server that others keep

Opens a browser where this machine has a screen, and prints the address in any case. docs/viewing.md says what is where.
"""
COMPARE_EPILOG = """example: two models on the tasks that both have answered; a run stands for its last evaluation
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


def add_look_commands(commands: "Commands") -> None:
    """Add the commands to the parser."""
    text = "show what a run is doing: stage, queue, groups in flight, workers and their health, failures"
    command = add_command(commands, "status", _status, text, epilog=STATUS_EPILOG)
    add_run(command)
    how = command.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="as one JSON object, with `running`")
    how.add_argument("--watch", action="store_true", help="again every second, until Ctrl-C or the end of the run")
    text = "ask a run that is going on for another number of rollout workers, until it ends"
    command = add_command(commands, "scale", _scale, text, epilog=SCALE_EPILOG)
    add_run(command)
    command.add_argument("--rollout-workers", type=int, required=True, metavar="N", help="1 or more")
    _add_view(commands)
    text = "open MLflow's pages on the runs and charts of an experiment"
    command = add_command(commands, "ui", _ui, text, epilog=UI_EPILOG)
    command.add_argument(
        "--runs-dir", type=Path, default=Path("runs"), metavar="FOLDER", help="the folder of the runs (default: runs)"
    )
    command.add_argument("--port", type=int, default=5000, metavar="N", help="port on 127.0.0.1 (default: 5000)")
    command.add_argument("--experiment", metavar="NAME", help="by default that of the newest run")
    command.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    _add_compare(commands)


def _add_view(commands: "Commands") -> None:
    text = "look at the answers of a run in a browser, token by token"
    command = add_command(commands, "view", _view, text, epilog=VIEW_EPILOG)
    add_run(command)
    command.add_argument(
        "--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: one that is free)"
    )
    command.add_argument("--out", type=Path, metavar="FILE", help="write one HTML file in place of serving")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--step", metavar="N", help="with --out: the answers that this step trained")
    which.add_argument("--evaluation", metavar="NAME", help="with --out: the answers of this evaluation")
    command.add_argument("--against", metavar="NAME", help="with --evaluation: another one, to compare its tasks with")


def _add_compare(commands: "Commands") -> None:
    text = "compare two evaluations task by task, or groups of runs by their accuracy at the same thinking budgets, over seeds"
    command = add_command(commands, "report --compare", _compare, text, epilog=COMPARE_EPILOG)
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


def _status(given: argparse.Namespace) -> int:
    folder = require_run(given.run)
    if given.json:
        print(json.dumps(gather(folder, now=time.time()).as_json()))
    elif given.watch:
        with (
            contextlib.suppress(KeyboardInterrupt),
            Live(console=Console(), auto_refresh=False) as live,
        ):  # Ctrl-C ends it
            while folder.is_held():
                live.update(_shown(folder), refresh=True)
                time.sleep(REFRESH_S)
            live.update(_shown(folder), refresh=True)
    else:
        Console().print(_shown(folder), soft_wrap=True)
    return 0


def _shown(folder: RunDir) -> RenderableType:
    return facts_table(gather(folder, now=time.time()))


def _scale(given: argparse.Namespace) -> int:
    folder = require_run(given.run)
    if given.rollout_workers < 1:
        raise ValueError(f"--rollout-workers {given.rollout_workers} must be at least 1")
    if not folder.is_held():
        raise ValueError(f"{given.run} is not running; set rollout.workers in its configuration and start it")
    request, deadline = ask_for_workers(folder.root, given.rollout_workers), time.monotonic() + ANSWER_S
    while request.exists():
        held = folder.is_held()
        if not held or time.monotonic() > deadline:
            request.unlink(missing_ok=True)
            raise ValueError(_untaken(folder) if held else f"{given.run} has ended before it took the request")
        time.sleep(0.1)
    print(f"{given.rollout_workers} rollout workers are asked for; temper status {given.run} shows them")
    return 0


def _untaken(folder: RunDir) -> str:
    status = read_status(folder.root)
    last = "has written no status yet"
    if status is not None:
        last = f"was at step {status.step} of {status.steps} of {status.stage} {time.time() - status.time:.0f} s ago"
    return f"{folder.root} did not take the request within {ANSWER_S:.0f} s and {last}: it starts or ends; ask again"


def _view(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.inspect.viewer.archive import Archive
    from temper.orchestrator.tools.inspect.viewer.page import render_page, run_facts
    from temper.orchestrator.tools.inspect.viewer.recorded_file import find_file
    from temper.orchestrator.tools.inspect.viewer.token_bytes import tokenizer_of_run

    run = require_run(given.run)
    if given.out is None:
        if given.step or given.evaluation or given.against:
            raise ValueError(
                "--step, --evaluation and --against choose what --out writes; the served page has all of them"
            )
        return _serve(run, given.port)
    if given.against and not given.evaluation:
        raise ValueError(f"--against {given.against} needs --evaluation: two evaluations are compared")
    files = [find_file(run, step=given.step, evaluation=given.evaluation)]
    if given.against:
        files.append(find_file(run, evaluation=given.against))
    tokenizer = tokenizer_of_run(run)
    archives = {file.name: Archive(file, tokenizer) for file in files}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(given.out, render_page(run_facts(run, files), archives=archives))
    print(f"{given.out}: {' and '.join(file.label for file in files)} of {run.root}")
    return 0


def _serve(run: RunDir, port: int) -> int:
    from temper.orchestrator.tools.inspect.viewer.loopback import open_server, serve_until_interrupt
    from temper.orchestrator.tools.inspect.viewer.server import ViewServer

    server = open_server(lambda: ViewServer(run, port=port), port)
    server.archives.read_ahead()
    serve_until_interrupt(server, str(run.root))
    return 0


def _ui(given: argparse.Namespace) -> int:
    store = find_store(None, given.runs_dir)
    if store.startswith(("http://", "https://")):
        address = runs_page(store.rstrip("/"), given.experiment)
        print(blanked(address))
        _open(address, given.no_browser)
        return 0
    if not given.runs_dir.is_dir():
        raise FileNotFoundError(f"--runs-dir {given.runs_dir} is no folder; `temper run configs/demo.yaml` makes runs/")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server is ended in any case
    with (
        contextlib.suppress(KeyboardInterrupt),
        serve(store, port=given.port, log=given.runs_dir / "mlflow-ui.log") as (address, server),
    ):
        page = runs_page(address, given.experiment)
        print(f"{page} (Ctrl-C ends the server)", flush=True)
        _open(page, given.no_browser)
        server.wait()
    return 0


def _open(address: str, closed: bool) -> None:
    if not closed and any(os.environ.get(name) for name in SCREENS):
        webbrowser.open(address)


def _compare(given: argparse.Namespace) -> int:
    if bool(given.evaluations) == bool(given.runs):
        raise ValueError(
            "give two evaluations, or groups of runs by --runs NAME=RUN[,RUN...]; see temper report --compare --help"
        )
    return _compare_groups(given) if given.runs else _compare_tasks(given)


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


def _compare_tasks(given: argparse.Namespace) -> int:
    if len(given.evaluations) != 2:
        raise ValueError(f"{len(given.evaluations)} evaluations are given; two are compared")
    if given.label is not None:
        raise ValueError(
            f"--label {given.label} is for groups (--runs); of two evaluations name eval/{given.label}.json"
        )
    if given.out is not None and given.out.suffix != ".json":
        raise ValueError(f"--out {given.out} must end in .json")
    from temper.orchestrator.tools.inspect.report.pairs import compare_places, pair_table

    pair = compare_places(*given.evaluations)
    print(f"first: {pair.first}\nsecond: {pair.second}")
    if pair.different_settings:
        print(f"asked differently: {'; '.join(pair.different_settings)}")
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

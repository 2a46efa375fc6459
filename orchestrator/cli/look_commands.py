"""The commands `status`, `scale`, `view`, `ui` and `report --compare`."""

import argparse
import contextlib
import json
import os
import shlex
import sys
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.live import Live

from temper.orchestrator.cli.arguments import add_command, add_run, path_of_run, port_number, require_run
from temper.orchestrator.run.folder import RunDir, write_atomically, write_json
from temper.orchestrator.run.redaction import blank_text
from temper.orchestrator.session.status import ask_for_workers, read_status

if TYPE_CHECKING:
    from temper.orchestrator.cli.arguments import Commands

REFRESH_S = 1.0
ANSWER_S = 20.0
"""Seconds that `scale` waits for the run to accept the request."""
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
"""One of these variables is set if the machine has a screen."""
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

New workers receive groups once they have the current weights. Surplus workers finish their groups first. The next start of
the run uses rollout.workers of its configuration again.
"""
VIEW_EPILOG = """examples:
  temper view runs/demo                                           serve it on 127.0.0.1 until Ctrl-C
  temper view runs/demo --out step.html --step 30                 one file without a server
  temper view runs/demo --out rl.html --evaluation rl --against sft

Shows the answers in RUN/trajectories: a table with filters, the answers to one task in columns, and every token with its
logprobs, advantage, weights version and loss mask. docs/viewing.md describes the page. A step is N or STAGE/N. An evaluation is
the evaluated stage (sft, rl), or STAGE/N between steps. The default is the newest step.
"""
UI_EPILOG = """examples:
  temper ui                                     the runs of runs/mlflow.db, on http://127.0.0.1:5000
  temper ui --runs-dir /shared/runs --port 5001
  temper ui --experiment night                  an experiment by name
  MLFLOW_TRACKING_URI=http://head:5000 temper ui    the page of an MLflow server

Prints the address, and opens a browser if this machine has a screen. docs/viewing.md describes the pages.
"""
COMPARE_EPILOG = """example: two models on their common tasks, by the last evaluation of a run
  temper report --compare runs/demo/eval/sft.json runs/demo/eval/rl.json
  temper report --compare runs/plain-1 runs/mixed-1 --out compare.json

The output has the difference in accuracy with its interval over tasks, a p value by the sign-flip test, and the number of tasks
that would show such a difference.

example: a curve of each seed, then the page
  temper run configs/demo.yaml name=plain-1 seed=1 'eval.budgets=[8,16,32]'
  temper run configs/demo.yaml name=mixed-1 seed=1 'eval.budgets=[8,16,32]' \\
      rl.thinking.budget=0.5 'rl.thinking.budgets=[8,16,32]'
  ... the same with seed=2 and seed=3
  temper report --compare --runs plain=runs/plain-1,runs/plain-2,runs/plain-3 \\
      --runs mixed=runs/mixed-1,runs/mixed-2,runs/mixed-3 --out compare.html

All runs need the same token budgets. To add a curve later:
temper eval runs/plain-1/config.yaml 'eval.budgets=[8,16,32]' 'eval.budget_shares=[]'
"""


def add_look_commands(commands: "Commands") -> None:
    """Add the commands to the parser."""
    text = "show stage, queue, groups in flight, workers and failures of a run"
    command = add_command(commands, "status", _status, text, epilog=STATUS_EPILOG)
    add_run(command)
    how = command.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print one JSON object, with `running`")
    how.add_argument("--watch", action="store_true", help="refresh every second until the run ends")
    text = "change the number of rollout workers of a running run"
    command = add_command(commands, "scale", _scale, text, epilog=SCALE_EPILOG)
    add_run(command)
    command.add_argument("--rollout-workers", type=int, required=True, metavar="N", help="1 or more")
    _add_view(commands)
    text = "open MLflow's pages of an experiment"
    command = add_command(commands, "ui", _ui, text, epilog=UI_EPILOG)
    command.add_argument(
        "--runs-dir", type=Path, default=Path("runs"), metavar="FOLDER", help="the folder of the runs (default: runs)"
    )
    command.add_argument(
        "--port", type=port_number, default=5000, metavar="N", help="port on 127.0.0.1 (default: 5000)"
    )
    command.add_argument("--experiment", metavar="NAME", help="experiment (default: the newest run's)")
    command.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    _add_compare(commands)


def _add_view(commands: "Commands") -> None:
    text = "view the answers of a run in a browser, token by token"
    command = add_command(commands, "view", _view, text, epilog=VIEW_EPILOG)
    add_run(command)
    command.add_argument(
        "--port", type=port_number, default=0, metavar="N", help="port on 127.0.0.1 (default: a free port)"
    )
    command.add_argument("--out", type=Path, metavar="FILE", help="write one HTML file instead of serving")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--step", metavar="N", help="with --out: the answers of this step")
    which.add_argument("--evaluation", metavar="NAME", help="with --out: the answers of this evaluation")
    command.add_argument("--against", metavar="NAME", help="with --evaluation: another evaluation to compare")


def _add_compare(commands: "Commands") -> None:
    text = "compare two evaluations task by task, or groups of runs by their accuracy at the same thinking budgets, over seeds"
    command = add_command(commands, "report --compare", _compare, text, epilog=COMPARE_EPILOG)
    pair = command.add_argument_group("two evaluations")
    pair.add_argument(
        "evaluations",
        nargs="*",
        type=path_of_run,
        metavar="EVALUATION",
        help="two of them, the earlier model first: a file eval/LABEL.json, or a run by folder or name",
    )
    groups = command.add_argument_group("groups of runs")
    groups.add_argument(
        "--runs",
        action="append",
        default=[],
        metavar="NAME=RUN[,RUN...]",
        help="a group: the runs (seeds) of one setting by folder or name. Repeat for each group",
    )
    groups.add_argument(
        "--label", metavar="STAGE", help="compare after this stage, for example rl (default: the last curve)"
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="JSON file for two evaluations (default: none), page and JSON file for groups (default: compare.html)",
    )


def _status(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.inspect.status.facts import gather

    folder, console = require_run(given.run), Console()
    if given.json:
        print(json.dumps(gather(folder, now=time.time()).as_json()))
    elif given.watch:
        with (
            contextlib.suppress(KeyboardInterrupt),
            Live(console=console, auto_refresh=False) as live,
        ):  # Ctrl-C ends it
            while folder.is_held():
                live.update(_shown(folder, console), refresh=True)
                time.sleep(REFRESH_S)
            live.update(_shown(folder, console), refresh=True)
    else:
        console.print(_shown(folder, console), soft_wrap=not console.is_terminal)
    return 0


def _shown(folder: RunDir, console: Console) -> RenderableType:
    from temper.orchestrator.tools.inspect.status.facts import gather
    from temper.orchestrator.tools.inspect.status.terminal import facts_table

    return facts_table(gather(folder, now=time.time()), width=console.width if console.is_terminal else None)


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
            raise ValueError(_untaken(folder) if held else f"{given.run} ended before it accepted the request")
        time.sleep(0.1)
    print(f"requested {given.rollout_workers} rollout workers; temper status {shlex.quote(str(given.run))} shows them")
    return 0


def _untaken(folder: RunDir) -> str:
    status = read_status(folder.root)
    last = "has written no status yet"
    if status is not None:
        last = f"was at step {status.step} of {status.steps} of {status.stage} {time.time() - status.time:.0f} s ago"
    return f"{folder.root} did not accept the request within {ANSWER_S:.0f} s and {last}. It is starting or ending; try again"


def _view(given: argparse.Namespace) -> int:
    from temper.orchestrator.tools.inspect.viewer.archive import Archive
    from temper.orchestrator.tools.inspect.viewer.page import render_page, run_facts
    from temper.orchestrator.tools.inspect.viewer.recorded_file import find_file
    from temper.orchestrator.tools.inspect.viewer.token_bytes import tokenizer_of_run

    run = require_run(given.run)
    if given.out is None:
        if given.step or given.evaluation or given.against:
            raise ValueError("--step, --evaluation and --against need --out. The served page has all files")
        return _serve(run, given.port)
    if given.against and not given.evaluation:
        raise ValueError(f"--against {given.against} needs --evaluation")
    files = [find_file(run, step=given.step, evaluation=given.evaluation)]
    if given.against:
        files.append(find_file(run, evaluation=given.against))
    tokenizer = tokenizer_of_run(run)
    archives = {file.name: Archive(file, tokenizer) for file in files}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given.out, render_page(run_facts(run, files), archives=archives))
    print(f"{given.out}: {' and '.join(file.label for file in files)} of {run.root}")
    return 0


def _serve(run: RunDir, port: int) -> int:
    from temper.orchestrator.tools.inspect.viewer.server import ViewServer

    try:
        server = ViewServer(run, port=port)
    except OSError as error:
        raise ValueError(f"--port {port}: {error.strerror or error}; use another port, or omit it") from error
    with server:
        server.archives.read_ahead()
        print(f"{run.root}: {server.address} (Ctrl-C to stop)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def _ui(given: argparse.Namespace) -> int:
    from temper.orchestrator.tracking.mlflow.dashboard import runs_page, serve
    from temper.orchestrator.tracking.mlflow.stored_run import find_store

    store = find_store(None, given.runs_dir)
    if store.startswith(("http://", "https://")):
        address = runs_page(store.rstrip("/"), given.experiment)
        print(blank_text(address))
        _open(address, given.no_browser)
        return 0
    if not given.runs_dir.is_dir():
        raise FileNotFoundError(
            f"--runs-dir {given.runs_dir} is not a folder; `temper run configs/demo.yaml` creates runs/"
        )
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
            "name two evaluations, or groups with --runs NAME=RUN[,RUN...]; see temper report --compare --help"
        )
    return _compare_groups(given) if given.runs else _compare_tasks(given)


def parse_groups(given: list[str]) -> dict[str, list[Path]]:
    """Return the folders of each group. Raise `ValueError` if a group is not NAME=RUN[,RUN...]."""
    groups: dict[str, list[Path]] = {}
    for text in given:
        name, _, listed = text.partition("=")
        folders = [path_of_run(run) for run in listed.split(",") if run]
        if not name or not folders:
            raise ValueError(f"--runs {text!r} is not of the form NAME=RUN[,RUN...], for example plain=runs/a,runs/b")
        if name in groups:
            raise ValueError(f"--runs {name}=... is repeated; list all runs of a group: {name}=A,B")
        groups[name] = folders
    return groups


def _compare_tasks(given: argparse.Namespace) -> int:
    if len(given.evaluations) != 2:
        raise ValueError(f"name two evaluations, not {len(given.evaluations)}")
    if given.label is not None:
        raise ValueError(f"--label {given.label} needs --runs; for two evaluations use eval/{given.label}.json")
    if given.out is not None and given.out.suffix != ".json":
        raise ValueError(f"--out {given.out} must end in .json")
    from temper.orchestrator.tools.inspect.report.pairs import compare_places, pair_table

    pair = compare_places(*given.evaluations)
    print(f"first: {pair.first}\nsecond: {pair.second}")
    if pair.different_settings:
        print(f"different settings: {'; '.join(pair.different_settings)}")
    Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH).print(pair_table(pair))
    for env, found in pair.envs.items():
        if found.left_out:
            print(f"{env}: {found.left_out} tasks without a score")
    if given.out is not None:
        write_json(given.out, pair.as_json())
    return 0


def _compare_groups(given: argparse.Namespace) -> int:
    out = given.out or Path("compare.html")
    if out.suffix != ".html":
        raise ValueError(f"--out {out} must end in .html; the JSON file gets the same name")
    from temper.orchestrator.tools.inspect.report.compare import read_curves, write_comparison

    named = parse_groups(given.runs)
    groups = {name: [read_curves(folder, label=given.label) for folder in folders] for name, folders in named.items()}
    print(f"{out} and {write_comparison(groups, out)}")
    return 0

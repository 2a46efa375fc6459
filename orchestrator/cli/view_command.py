"""The command `view`: the answers of a run in a browser, token by token."""

import argparse
from pathlib import Path

from temper.orchestrator.cli.named_model import path_of_run, require_run
from temper.orchestrator.run.folder import RunDir, write_whole
from temper.orchestrator.tools.inspect.viewer.archive import Archive
from temper.orchestrator.tools.inspect.viewer.loopback import opened, serve_until_interrupt
from temper.orchestrator.tools.inspect.viewer.page import document
from temper.orchestrator.tools.inspect.viewer.recorded_file import chosen_file
from temper.orchestrator.tools.inspect.viewer.run_facts import facts_of, tokenizer_of_run
from temper.orchestrator.tools.inspect.viewer.server import ViewServer

EPILOG = """examples:
  temper view runs/demo                                           serve it on 127.0.0.1 until Ctrl-C
  temper view runs/demo --out step.html --step 30                 one file, which needs no server
  temper view runs/demo --out rl.html --evaluation rl --against sft

Shows the answers that steps and evaluations have left in RUN/trajectories: a table to filter, the answers to one task side by
side, every token with its log-probabilities, advantage, weight version and why it carries no loss, and why an answer got its
reward. docs/viewing.md says how to read it and what a run records. A step is N or STAGE/N; an evaluation is what it evaluates
(sft, rl), or STAGE/N between steps; without either it is the newest step.
"""


def add_view_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    text = "look at the answers of a run in a browser, token by token"
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("view", help=text, description=text, epilog=EPILOG, formatter_class=raw)
    command.add_argument("run", type=path_of_run, metavar="RUN", help="a run's folder, such as runs/demo, or its name")
    command.add_argument(
        "--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: one that is free)"
    )
    command.add_argument("--out", type=Path, metavar="FILE", help="write one HTML file in place of serving")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--step", metavar="N", help="with --out: the answers that this step trained")
    which.add_argument("--evaluation", metavar="NAME", help="with --out: the answers of this evaluation")
    command.add_argument("--against", metavar="NAME", help="with --evaluation: another one, to compare its tasks with")
    command.set_defaults(execute=_view)


def _view(given: argparse.Namespace) -> int:
    run = require_run(given.run)
    if given.out is None:
        if given.step or given.evaluation or given.against:
            raise ValueError(
                "--step, --evaluation and --against choose what --out writes; the served page has all of them"
            )
        return _serve(run, given.port)
    if given.against and not given.evaluation:
        raise ValueError(f"--against {given.against} needs --evaluation: two evaluations are compared")
    files = [chosen_file(run, step=given.step, evaluation=given.evaluation)]
    if given.against:
        files.append(chosen_file(run, evaluation=given.against))
    tokenizer = tokenizer_of_run(run)
    archives = {file.name: Archive(file, tokenizer) for file in files}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(given.out, document(facts_of(run, files), archives=archives))
    print(f"{given.out}: {' and '.join(file.label for file in files)} of {run.root}")
    return 0


def _serve(run: RunDir, port: int) -> int:
    server = opened(lambda: ViewServer(run, port=port), port)
    server.shelf.read_ahead()
    serve_until_interrupt(server, str(run.root))
    return 0

"""The command `ui`: MLflow's pages in a browser, opened on the runs and charts of an experiment."""

import argparse
import contextlib
import os
import signal
import webbrowser
from pathlib import Path

from temper.orchestrator.run.redaction import blanked
from temper.orchestrator.tracking.mlflow.dashboard import runs_page, serving
from temper.orchestrator.tracking.mlflow.tracker import store_of

EPILOG = """examples:
  temper ui                                     the runs of runs/mlflow.db, on http://127.0.0.1:5000
  temper ui --runs-dir /shared/runs --port 5001
  temper ui --experiment night                  another experiment than that of the newest run
  MLFLOW_TRACKING_URI=http://head:5000 temper ui    the page of a server that others keep

Opens a browser where this machine has a screen, and prints the address in any case. docs/mlflow.md says what is where.
"""
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
"""Variables one of which is set where a browser would be seen."""


def add_ui_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser; it sets `execute`, which takes the parsed arguments and gives the status."""
    text = "open MLflow's pages on the runs and charts of an experiment"
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("ui", help=text, description=text, epilog=EPILOG, formatter_class=raw)
    command.add_argument(
        "--runs-dir", type=Path, default=Path("runs"), metavar="FOLDER", help="the folder of the runs (default: runs)"
    )
    command.add_argument("--port", type=int, default=5000, metavar="N", help="port on 127.0.0.1 (default: 5000)")
    command.add_argument("--experiment", metavar="NAME", help="by default that of the newest run")
    command.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    command.set_defaults(execute=_ui)


def _ui(given: argparse.Namespace) -> int:
    store = store_of(None, given.runs_dir)
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
        serving(store, port=given.port, log=given.runs_dir / "mlflow-ui.log") as (address, server),
    ):
        page = runs_page(address, given.experiment)
        print(f"{page} (Ctrl-C ends the server)", flush=True)
        _open(page, given.no_browser)
        server.wait()
    return 0


def _open(address: str, closed: bool) -> None:
    if not closed and any(os.environ.get(name) for name in SCREENS):
        webbrowser.open(address)

"""`temper ui` serves MLflow's pages of the newest runs."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from support.tracked_runs import tracker

from temper.orchestrator.__main__ import main
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.orchestrator.tracking.backend import RunStatus
from temper.orchestrator.tracking.mlflow.dashboard import runs_page


@dataclass(frozen=True, kw_only=True)
class Served:
    """A folder with a tracked run, the server's address, and the address that the command printed."""

    runs: Path
    server: str
    printed: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    runs = tmp_path_factory.mktemp("runs")
    (runs / "tiny").mkdir()
    MetricsLog(runs / "tiny" / "metrics.jsonl").append("rl", 1, {"train/loss": 1.0})
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        one = tracker(runs / "tiny", f"sqlite:///{runs}/mlflow.db", name="tiny", experiment="temper")
        one.close(RunStatus.FINISHED, timeout_s=120)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    command = [sys.executable, "-m", "temper.orchestrator", "ui", "--runs-dir", str(runs), "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
        env=environment,
    )
    try:
        assert process.stdout is not None
        found = re.match(r"(http://127\.0\.0\.1:\d+)(/#/experiments/\d+/runs\S+) ", process.stdout.readline())
        assert found is not None, (runs / "mlflow-ui.log").read_text()
        yield Served(runs=runs, server=found[1], printed=found[1] + found[2])
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(found[1], timeout=10)
    finally:
        process.kill()
        process.communicate()


def test_the_pages_are_of_the_newest_run_or_of_the_named_experiment(served: Served) -> None:
    client = MlflowClient(f"sqlite:///{served.runs}/mlflow.db")
    client.create_run(client.create_experiment("of-others"))  # a newer foreign run
    assert runs_page(served.server, None) == served.printed == runs_page(served.server, "temper")
    with pytest.raises(ValueError, match="--experiment night .*temper"):
        runs_page(served.server, "night")


def test_the_pages_are_told_to_report_to_nobody(served: Served) -> None:
    with urllib.request.urlopen(f"{served.server}/ajax-api/3.0/mlflow/ui-telemetry", timeout=10) as answer:
        told = json.load(answer)
    assert (told["disable_ui_telemetry"], told["disable_ui_events"]) == (True, [])


def test_a_taken_port_is_refused_before_anything_starts(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    port = served.server.rpartition(":")[2]
    began = time.monotonic()
    assert main(["ui", "--runs-dir", str(served.runs), "--port", port]) == 2
    said = capsys.readouterr().err
    assert port in said
    assert "--port" in said
    assert main(["ui", "--runs-dir", str(served.runs / "none")]) == 2
    assert "--runs-dir" in capsys.readouterr().err
    assert time.monotonic() - began < 5

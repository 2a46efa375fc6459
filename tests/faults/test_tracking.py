"""A run with a killed driver and a tracking server that is slow, fails and returns. Its files agree throughout."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from support.fault_job import START_S, SYNCHRONOUS, Job, rows, runs
from support.fault_report import saw
from support.healing import audited, steps_done

from temper.orchestrator.run.checkpoint import steps
from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tracking.metric_names import display_name

MANY = 2000
"""More steps than the run makes."""
SAVED_EVERY = 25
SLOW_S = 12.0
METRICS = (
    *(("sft", "train/loss"), ("rl", "train/loss"), ("rl", "rollout/answers")),
    *(("eval-sft", "coin/avg_at_k"), ("start", "engine/start_s")),
)


SENDINGS = 5
"""How often the command may be repeated until the server has every row."""


class Server:
    """A tracking server on loopback, of one process group."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, or restart it on its data. Return once it answers."""
        options = ["--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        options += ["--backend-store-uri", f"sqlite:///{self._folder}/server.db"]
        options += ["--artifacts-destination", str(self._folder / "artifacts")]
        with (self._folder / "server.log").open("ab") as log:
            command = [sys.executable, "-m", "mlflow", "server", *options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline, (self._folder / "server.log").read_text()
            time.sleep(0.2)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the server if it still runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.send(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
            return bool(answer.status == 200)
        return False


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.kill()


def of_the_experiment(server: Server, view: int) -> list[Run]:
    """Return the deleted or the active runs, without their stage runs."""
    client = MlflowClient(server.uri)
    experiment = client.get_experiment_by_name("temper")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], run_view_type=view)
    return [run for run in found if "mlflow.parentRunId" not in run.data.tags]


def require_tracked(server: Server, run: Path) -> None:
    """Fail unless the one run that is not deleted has each step of the metrics file once, and its files."""
    client = MlflowClient(server.uri)
    (found,) = of_the_experiment(server, ViewType.ACTIVE_ONLY)
    assert found.info.status == "FINISHED"
    for stage, name in METRICS:
        history = client.get_metric_history(found.info.run_id, display_name(stage, name))
        sent = sorted((metric.step, metric.value) for metric in history)
        assert sent == [(row.step, row.values[name]) for row in rows(run, stage)], (stage, name)
    listed = [file for folder in (None, "eval") for file in client.list_artifacts(found.info.run_id, folder)]
    artifacts = {file.path for file in listed}
    assert {"eval/sft.json", "report.json"} <= artifacts, artifacts


def sent_step(server: Server) -> int:
    """Return the newest step of rl that the server has."""
    (found,) = of_the_experiment(server, ViewType.ACTIVE_ONLY)
    name = next(display_name(stage, name) for stage, name in METRICS if stage == "rl")
    return max((one.step for one in MlflowClient(server.uri).get_metric_history(found.info.run_id, name)), default=0)


def saved_step(job: Job) -> int:
    """Return the step of the newest checkpoint of rl."""
    return steps(job.run / "checkpoints" / "rl")[-1]


def step_seconds(measured: list[MetricsRow]) -> float:
    """Return the median time of a step, in seconds."""
    times = sorted(row.values["time/step_s"] for row in measured)
    return times[len(times) // 2]


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_a_server_that_is_slow_and_dies_and_a_driver_that_is_killed_leave_one_history(server: Server) -> None:
    arguments = [
        *SYNCHRONOUS,
        "stages=[init,sft,eval,rl,report]",
        f"rl.checkpoint_every={SAVED_EVERY}",
        f"tracking.uri={server.uri}",
    ]
    with runs() as found:
        job = found.start("job", *arguments, f"rl.steps={MANY}")
        job.wait_until(job.reached("rl", 6), "steps with a server")
        stopped = time.time()
        server.send(signal.SIGSTOP)
        job.wait_until(lambda: time.time() > stopped + SLOW_S, "steps with a server that does not answer")
        server.kill()
        killed = time.time()
        job.wait_until(job.reached("rl", steps_done(job) + 6), "steps without a server")
        audited(job.run)
        server.start()
        job.wait_until(job.said(f"tracking: {server.uri} is back"), "the server is back")
        behind = (steps_done(job) // SAVED_EVERY + 1) * SAVED_EVERY + 3
        job.wait_until(
            lambda: sent_step(server) >= max(behind, saved_step(job) + 1),
            "steps at the server that the next start makes again",
            every_s=0.5,
        )
        job.kill()
        measured = rows(job.run, "rl")
        ahead = sent_step(server) > saved_step(job)  # else a checkpoint came between the look and the kill
        audited(job.run)
        last = steps_done(job) + 3
        job = found.start("job", *arguments, f"rl.steps={last}")
        assert job.end() == 0, job.output
        again = [row.step for row in rows(job.run, "rl") if row.time >= job.began and row.step <= measured[-1].step]
        assert again or not ahead, "no step was made twice"
        audited(job.run)
        assert [row.step for row in rows(job.run, "rl")] == list(range(1, last + 1))
        for _ in range(SENDINGS):  # on a slow machine the end of a run does not wait for all rows
            if "the same command to send the rest" not in job.output:
                break
            job = found.start("job", *arguments, f"rl.steps={last}")
            assert job.end() == 0, job.output
        require_tracked(server, job.run)
        assert len(of_the_experiment(server, ViewType.DELETED_ONLY)) == ahead
    slow = [row for row in measured if stopped < row.time < killed]
    usual = [row for row in measured if row.time <= stopped]
    saw(
        "tracker-slow",
        f"stopped for {killed - stopped:.0f} s: {len(slow)} steps meanwhile, {step_seconds(slow):.2f} s each in the median "
        f"(before {step_seconds(usual):.2f} s)",
    )
    saw(
        "tracker-dies",
        f"said; {len(again)} steps were sent and then made again: in the end one run with all {last} steps, "
        f"each once, the other one deleted; `audit` found nothing while the run worked and after",
    )

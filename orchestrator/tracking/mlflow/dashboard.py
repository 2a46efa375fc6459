"""MLflow's pages: its server on loopback, and the address of the page on which an experiment's runs and charts are."""

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
from urllib.parse import quote

LOOPBACK = "127.0.0.1"
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""Variables of a server without telemetry, and without processes for jobs that nobody asks of it."""
OURS = "tags.`temper.run` LIKE '%'"
"""Which of a server's runs are of this program, and not the nested run of a stage."""
RUNS_PAGE = (
    "/#/experiments/{experiment}/runs?compareRunsMode=CHART&workflowType=machine_learning&searchFilter=" + quote(OURS)
)
"""The page of runs and charts. Without `workflowType`, MLflow opens on a page about the tracing of agents; the filter leaves
out the nested runs of stages, whose curves those of the runs have too."""
START_S = 120.0
"""How long the server may take to answer, in seconds: the first start makes its database."""
STOP_S = ANSWER_S = 10.0


@contextlib.contextmanager
def serve(store: str, *, port: int, log: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Serve MLflow's pages of a store; yields their address, once they answer, and the process. What it prints goes to `log`.

    Raise `ValueError` where the port is taken or it ends instead, `TimeoutError` where it never answers.
    """
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        raise ValueError(
            f"--port {port}: {os.strerror(error.errno or 0)}; choose another, such as --port {port + 1}"
        ) from error
    command = [sys.executable, "-m", "mlflow", "server", "--host", LOOPBACK, "--port", str(port), "--workers", "1"]
    # In the environment, since any user may see arguments and passwords in them.
    environment = os.environ | QUIET | {"MLFLOW_BACKEND_STORE_URI": store}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
    try:
        address = f"http://{LOOPBACK}:{port}"
        _wait_for(address, server, log)
        yield address, server
    finally:
        _end(server)


def runs_page(address: str, experiment: str | None) -> str:
    """Return the address of the page of runs and charts of an experiment, by default the one with our newest run.

    If there is none yet it is that of all experiments. Raise `ValueError` if the experiment is not there, `OSError`
    if the server does not answer.
    """
    from mlflow.exceptions import MlflowException  # imported here: it takes seconds

    from temper.orchestrator.tracking.mlflow.run import make_client

    try:
        client = make_client(address)
        known = {one.name: one.experiment_id for one in client.search_experiments(max_results=1000)}
        if experiment is not None and experiment not in known:
            raise ValueError(f"--experiment {experiment} is not at {address}; there are {', '.join(known)}")
        newest = {"filter_string": OURS, "order_by": ["attributes.start_time DESC"], "max_results": 1}
        runs = client.search_runs(list(known.values()), **newest) if experiment is None and known else []
    except MlflowException as error:
        raise OSError(f"{address} does not answer: {error}") from error
    found = [known[experiment]] if experiment is not None else [run.info.experiment_id for run in runs]
    return address + (RUNS_PAGE.format(experiment=found[0]) if found else "/#/experiments")


def _wait_for(address: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=ANSWER_S) as answer:
            if answer.status == 200 and server.poll() is None:
                return
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"MLflow's server did not answer at {address} in {START_S:.0f} s; {log} has what it said"
            )
        time.sleep(0.2)
    said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise ValueError(f"MLflow's server ended with status {server.returncode}; it said:\n{said}")


def _end(server: "subprocess.Popen[bytes]") -> None:
    """End the server and its workers, which are a group of processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_S)
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()

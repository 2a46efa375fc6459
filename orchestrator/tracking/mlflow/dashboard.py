"""MLflow's pages: its server on loopback, and the address of an experiment's page of runs and charts."""

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

from temper.envs.core.process import kill_group

LOOPBACK = "127.0.0.1"
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""Server variables that turn off telemetry and job processes."""
OURS = "tags.`temper.run` LIKE '%'"
"""Filter for runs of this program, without nested runs of stages."""
RUNS_PAGE = (
    "/#/experiments/{experiment}/runs?compareRunsMode=CHART&workflowType=machine_learning&searchFilter=" + quote(OURS)
)
"""The page of runs and charts. Without `workflowType`, MLflow opens on agent tracing. The filter hides the nested runs of
stages, whose curves are also in their parent runs."""
START_S = 120.0
"""Seconds for the server to answer. The first start creates its database."""
STOP_S = ANSWER_S = 10.0


@contextlib.contextmanager
def serve(store: str, *, port: int, log: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Serve MLflow's pages of a store. Yield their address and the process once they answer. Output goes to `log`.

    Raise `ValueError` if the port is in use or the server ends, `TimeoutError` if it never answers.
    """
    require_free_port(port)
    command = [sys.executable, "-m", "mlflow", "server", "--host", LOOPBACK, "--port", str(port), "--workers", "1"]
    # In the environment, because any user can see arguments and their passwords.
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


def require_free_port(port: int, *, host: str = LOOPBACK) -> None:
    """Raise `ValueError` if a server can't listen there, usually because another process does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        text = f"can't listen on {host}, port {port} ({os.strerror(error.errno or 0)}); use another --port, such as {port + 1}"
        raise ValueError(text) from error


def runs_page(address: str, experiment: str | None) -> str:
    """Return the address of an experiment's page of runs and charts, by default the experiment with the newest run.

    Without any run it is the page of all experiments. Raise `ValueError` if the experiment does not exist, `OSError` if the
    server does not answer.
    """
    from mlflow.exceptions import MlflowException  # imported here: it takes seconds

    from temper.orchestrator.tracking.mlflow.run import make_client

    try:
        client = make_client(address)
        known = {one.name: one.experiment_id for one in client.search_experiments(max_results=1000)}
        if experiment is not None and experiment not in known:
            raise ValueError(f"--experiment {experiment} is not at {address}; use one of {', '.join(known)}")
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
            raise TimeoutError(f"MLflow's server did not answer at {address} in {START_S:.0f} s; see {log}")
        time.sleep(0.2)
    output = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise ValueError(f"MLflow's server ended with status {server.returncode}:\n{output}")


def _end(server: "subprocess.Popen[bytes]") -> None:
    """End the server and its workers, a process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_S)
        kill_group(server.pid)
    server.wait()

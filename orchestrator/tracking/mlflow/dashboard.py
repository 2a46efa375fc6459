"""MLflow's pages: its server on loopback, and the address of the page on which an experiment's runs and charts are."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

LOOPBACK = "127.0.0.1"
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
"""Variables with which the server tells nobody that it is used, and starts no processes for jobs that nobody asks of it."""
OURS = "tags.`temper.run` LIKE '%'"
"""Which of a server's runs are of this program, and not the nested run of a stage."""
RUNS_PAGE = (
    "/#/experiments/{experiment}/runs?compareRunsMode=CHART&workflowType=machine_learning&searchFilter=" + quote(OURS)
)
"""The page of runs and charts. Without the kind of work that it names, MLflow opens on a page about the tracing of agents; the
filter leaves out the nested runs of stages, whose curves those of the runs have too."""
START_S = 120.0
"""How long the server may take to answer, in seconds: the first start makes its database."""
STOP_S = 10.0
ANSWER_S = 10.0
POLL_S = 0.2
TOLD = 2000
"""Characters of the server's log that an error quotes."""


@contextlib.contextmanager
def serving(store: str, *, port: int, log: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
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
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        server = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            env=os.environ
            | QUIET
            | {"MLFLOW_BACKEND_STORE_URI": store},  # every user may see arguments, and passwords in them
            start_new_session=True,
        )
    try:
        address = f"http://{LOOPBACK}:{port}"
        _wait_for(address, server, log)
        yield address, server
    finally:
        _end(server)


def runs_page(address: str, experiment: str | None) -> str:
    """Return the address of the page of runs and charts of an experiment, by default the one with our newest run.

    Where there is none yet it is that of all experiments. Raise `ValueError` where the experiment is not there, `OSError`
    where the server does not answer.
    """
    known = _ask(address, "experiments/search", {"max_results": 1000}).get("experiments", [])
    if experiment is not None:
        found = [one["experiment_id"] for one in known if one["name"] == experiment]
        if not found:
            raise ValueError(
                f"--experiment {experiment} is not at {address}; there are {', '.join(one['name'] for one in known)}"
            )
    else:
        wanted = {
            "experiment_ids": [one["experiment_id"] for one in known],
            "filter": OURS,
            "order_by": ["attributes.start_time DESC"],
            "max_results": 1,
        }
        found = [one["info"]["experiment_id"] for one in _ask(address, "runs/search", wanted).get("runs", [])]
    return address + (RUNS_PAGE.format(experiment=found[0]) if found else "/#/experiments")


def _ask(address: str, what: str, body: dict[str, Any]) -> dict[str, Any]:
    named = urlsplit(address)
    host = named._replace(netloc=named.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(
        f"{host}/api/2.0/mlflow/{what}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **_authorization(named)},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _authorization(address: SplitResult) -> dict[str, str]:
    """Return the header that a server asks for: by the user in its address, or by MLflow's variables, as its client does."""
    user = unquote(address.username or "") or os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    password = unquote(address.password or "") or os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    if user:
        return {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


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
        time.sleep(POLL_S)
    said = log.read_text(encoding="utf-8", errors="replace")[-TOLD:]
    raise ValueError(f"MLflow's server ended with status {server.returncode}; it said:\n{said}")


def _end(server: "subprocess.Popen[bytes]") -> None:
    """End the server and its workers, which are a group of processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_S)
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()

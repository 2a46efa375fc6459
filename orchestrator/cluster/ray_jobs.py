"""Ray's job server: a local head, submitting, following the log, stopping."""

import asyncio
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from ray.job_submission import JobStatus, JobSubmissionClient

from temper.envs.sandbox.seal import PR_SET_PDEATHSIG, prctl
from temper.orchestrator.cluster.session_logs import SessionLogs
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_ports

HEAD_START_S = 90.0
HEAD_STOP_S = 20.0
JOB_STOP_S = 120
"""How long a stopped job may take to end, in seconds, if its caller names no other time."""
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""The variable by which Ray knows that time. By default it kills a job after 3 s."""
NO_AGENT = "No available agent"
"""Ray's words for a cluster that can't start a job yet."""
POLL_S = 0.5
ANSWER_S = 60.0
"""How long the job server may take to answer, in seconds."""
UNANSWERED = 5
"""How often in a row the job server may leave the question for a job's status without an answer while it is followed."""
SILENT_S = 120.0
"""How long a job's log may bring nothing before its status is asked for and the connection made again, in seconds."""


class _Client(JobSubmissionClient):
    """Ray's client, which by itself waits for a silent server without end."""

    def _do_request(
        self, method: str, endpoint: str, *, data: bytes | None = None, json_data: dict[str, Any] | None = None
    ) -> Any:
        """Make a request, as Ray's own. Raise `TimeoutError` where nothing comes for `ANSWER_S` seconds."""
        try:
            return super()._do_request(method, endpoint, data=data, json_data=json_data, timeout=ANSWER_S)
        except requests.Timeout as error:
            raise TimeoutError(f"the job server at {self._address} did not answer in {ANSWER_S:.0f} s") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class JobServer:
    """Where jobs are submitted to. `headers` carry the token where the cluster asks for one."""

    address: str
    headers: dict[str, str] = field(default_factory=dict)

    def connect(self) -> JobSubmissionClient:
        """Return a client. Raise `ConnectionError` where nobody is there, `TimeoutError` where nobody answers."""
        return _Client(self.address, headers=dict(self.headers))


@contextmanager
def local_head(*, logs: Path | None = None) -> Iterator[JobServer]:
    """Run a Ray head on this machine for as long as the block runs.

    It is a child of this process and ends with it, also if this process is killed. Its address is written nowhere, so no
    other program joins it by accident. Its ports ask for a token, since some of them listen on every interface. Its files
    end with it too. Only the output of its workers goes to the folder `logs`, if the parent folder exists by then.
    Raises `RuntimeError` with the end of its log where it does not start.
    """
    port, dashboard, agent = free_ports(3)
    token = secrets.token_hex(32)
    folder = Path(tempfile.mkdtemp(prefix="temper-ray-"))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address", LOOPBACK, "--port", str(port), "--temp-dir", str(folder)]
    command += ["--dashboard-host", LOOPBACK, "--dashboard-port", str(dashboard)]
    command += ["--dashboard-agent-listen-port", str(agent)]
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    log = folder / "head.log"
    with log.open("w") as output:
        head = subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    try:
        server = JobServer(address=f"http://{LOOPBACK}:{dashboard}", headers={"Authorization": f"Bearer {token}"})
        _wait_until_up(server, head, log)
        yield server
    finally:
        end_session(head)
        if logs is not None and logs.parent.is_dir():
            SessionLogs(folder=folder / "session_latest" / "logs").keep(logs)
        shutil.rmtree(folder, ignore_errors=True)


class Job:
    """One submitted job."""

    def __init__(
        self, server: JobServer, job_id: str, *, write: Callable[[str], None], stop_s: int = JOB_STOP_S
    ) -> None:
        """`stop_s` is how long it may take to end after `stop`, in seconds."""
        self.id = job_id
        self.stop_s = stop_s
        self._client = server.connect()
        self._write = write
        self._written = 0

    @classmethod
    def submit(
        cls,
        server: JobServer,
        entrypoint: str,
        *,
        working_dir: Path,
        excludes: list[str],
        env_vars: dict[str, str],
        write: Callable[[str], None],
        stop_s: int = JOB_STOP_S,
    ) -> "Job":
        """Submit a shell command that will run in a copy of `working_dir`; its log goes to `write`."""
        logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)
        stop_wait = {STOP_WAIT: str(stop_s)}
        runtime_env = {"working_dir": str(working_dir), "excludes": excludes, "env_vars": stop_wait | env_vars}
        client, deadline = server.connect(), time.monotonic() + HEAD_START_S
        while True:
            try:
                job_id = client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env)
            except RuntimeError as error:  # a head answers before its agent is there, which starts jobs
                if NO_AGENT not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)
            else:
                return cls(server, job_id, write=write, stop_s=stop_s)

    def follow(self) -> None:
        """Write the log as it comes, until the job has ended. A connection that ends before that is made again.

        Raise `TimeoutError` where the job server leaves `UNANSWERED` questions in a row without an answer.
        """
        unanswered = 0
        while True:
            try:
                asyncio.run(self._tail())
                if self._client.get_job_info(self.id).status.is_terminal():
                    return
                unanswered = 0
            except TimeoutError as error:
                unanswered += 1
                if unanswered == UNANSWERED:
                    raise TimeoutError(
                        f"{error}, {UNANSWERED} times in a row; `ray job status {self.id}` says what becomes of the job"
                    ) from error
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Ask the job to stop: it gets SIGTERM, and is killed if it has not ended after `stop_s` seconds."""
        self._client.stop_job(self.id)

    def wait(self, *, limit_s: float | None = None) -> int:
        """Wait for the end of a job that has ended or was asked to. Write the output that `follow` did not. The limit is by
        default the stop's plus a minute.

        Returns the exit status, 1 for a job that never ran. Raise `TimeoutError` where that takes more than `limit_s` seconds.
        """
        limit_s = self.stop_s + 60.0 if limit_s is None else limit_s
        deadline = time.monotonic() + limit_s
        info = self._client.get_job_info(self.id)
        while not info.status.is_terminal():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"job {self.id} is still {info.status.value} {limit_s:.0f} s after it was told to stop; `ray job status "
                    f"{self.id}` says what becomes of it"
                )
            time.sleep(POLL_S)
            info = self._client.get_job_info(self.id)
        self._write(self._client.get_job_logs(self.id)[self._written :])
        if info.status == JobStatus.FAILED and not info.driver_exit_code:
            self._write(f"job {self.id} failed: {info.message}\n")
        return 0 if info.status == JobStatus.SUCCEEDED else int(info.driver_exit_code or 1)

    async def _tail(self) -> None:
        """Write the log until its connection ends or is silent: the job's status says whether that is its end."""
        seen = 0  # each connection sends the log from its beginning
        texts = aiter(self._client.tail_job_logs(self.id))
        with suppress(RuntimeError, TimeoutError, StopAsyncIteration):
            while True:
                async with asyncio.timeout(SILENT_S):
                    text = await anext(texts)
                new = text[max(0, self._written - seen) :]
                seen += len(text)
                if new:
                    self._written += len(new)
                    self._write(new)


def _end_with_parent() -> None:
    """Have the kernel end this process by SIGTERM when the one that started it is gone. Ray's head ends its children too."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, "pdeathsig")


def _wait_until_up(server: JobServer, head: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + HEAD_START_S
    while True:
        if head.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise RuntimeError(f"the local Ray head did not start within {HEAD_START_S:.0f} s:\n{tail}")
        try:
            server.connect().list_jobs()
        except (OSError, RuntimeError):
            time.sleep(POLL_S)
        else:
            return


def end_session(leader: subprocess.Popen[Any], *, grace_s: float = HEAD_STOP_S) -> None:
    """End a process, which takes its own children along; one that does not end in time is killed with its session."""
    leader.terminate()
    try:
        leader.wait(grace_s)
    except subprocess.TimeoutExpired:
        os.killpg(leader.pid, signal.SIGKILL)
        leader.wait(grace_s)

"""Ray's job submission: a local head for one job, and following a job to its end."""

import asyncio
import logging
import math
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ray.job_submission import JobStatus, JobSubmissionClient

from temper.envs.core.process import kill_group, set_variables
from temper.envs.sandbox.seal import end_with_parent
from temper.orchestrator.cluster.ray_cluster import ray_base
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_ports
from temper.rollout.engines.scratch_folder import RANDOM_BYTES

STOP_S = 7200
"""Seconds for a stopped job to save before Ray kills it."""
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""Ray's variable for that time. By default Ray kills a job after 3 s."""
START_S, STOP_HEAD_S, ANSWER_S, SILENT_S, POLL_S = 90.0, 20.0, 60.0, 120.0, 0.5
"""Seconds for a head or its agent to start, for a head to stop, for an answer, for a silent log, and between two polls."""
PREFIX = "temper-ray-"
MAX_UNANSWERED = 5
"""Consecutive requests that the job server may leave unanswered."""


@contextmanager
def local_head() -> Iterator[str]:
    """Run a Ray head during the block and yield the address of its job server. It requires a token.

    It ends with this process, even if this process is killed. Raise `RuntimeError` with its output if it does not start.
    """
    port, dashboard, agent = free_ports(3)
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=ray_base(PREFIX + "x" * RANDOM_BYTES))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address", LOOPBACK, "--port", str(port), "--temp-dir", folder]
    command += ["--dashboard-host", LOOPBACK, "--dashboard-port", str(dashboard)]
    command += ["--dashboard-agent-listen-port", str(agent)]
    access = {"RAY_AUTH_MODE": "token"}  # some of its ports listen on every interface
    access["RAY_AUTH_TOKEN"] = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
    with set_variables(access), Path(folder, "head.log").open("w+") as log:
        head = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, preexec_fn=end_with_parent)
        try:
            address, deadline = f"http://{LOOPBACK}:{dashboard}", time.monotonic() + START_S
            while not _answers(address):
                if head.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"the local Ray head did not start:\n{log.read()[-2000:]}")
                time.sleep(POLL_S)
            yield address
        finally:
            head.terminate()
            with suppress(subprocess.TimeoutExpired):
                head.wait(STOP_HEAD_S)
            kill_group(head.pid)
            head.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _answers(address: str) -> bool:
    try:
        _client(address).list_jobs()
    except (OSError, RuntimeError):
        return False
    return True


class _Client(JobSubmissionClient):
    """Ray's client with a deadline. The default client waits for a silent server forever."""

    def _do_request(
        self, method: str, endpoint: str, *, data: bytes | None = None, json_data: dict[str, Any] | None = None
    ) -> Any:
        return super()._do_request(method, endpoint, data=data, json_data=json_data, timeout=ANSWER_S)


def _client(address: str) -> JobSubmissionClient:
    """Return the client of a job server. RAY_AUTH_TOKEN is the token, if required."""
    token = os.environ.get("RAY_AUTH_TOKEN")
    return _Client(address, headers={"Authorization": f"Bearer {token}"} if token else None)


class Job:
    """A submitted shell command. Its log goes to `write`."""

    def __init__(
        self, address: str, command: str, *, runtime_env: dict[str, Any], write: Callable[[str], None]
    ) -> None:
        logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)
        self._client = _client(address)
        self._write = write
        self._written = 0
        self.id = self._submit(command, runtime_env)

    def _submit(self, command: str, runtime_env: dict[str, Any]) -> str:
        deadline = time.monotonic() + START_S
        while True:
            try:
                return str(self._client.submit_job(entrypoint=command, runtime_env=runtime_env))
            except RuntimeError as error:  # a head answers before its agent, which starts jobs, is ready
                if "No available agent" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(POLL_S)

    def follow(self, *, limit_s: float = math.inf) -> int:
        """Write the log until the job ends. Return its exit status, 1 if it never ran.

        Raise `OSError` after `MAX_UNANSWERED` unanswered requests in a row, `TimeoutError` after `limit_s` seconds.
        """
        deadline, unanswered = time.monotonic() + limit_s, 0
        while True:
            try:
                asyncio.run(self._tail())
                info = self._client.get_job_info(self.id)
                if info.status.is_terminal():
                    break
                unanswered = 0
            except OSError:
                unanswered += 1
                if unanswered == MAX_UNANSWERED:
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {self.id} has not ended in {limit_s:.0f} s; see `ray job status {self.id}`")
            time.sleep(POLL_S)
        self._write(self._client.get_job_logs(self.id)[self._written :])
        if info.status == JobStatus.FAILED and not info.driver_exit_code:
            self._write(f"job {self.id} failed: {info.message}\n")
        return 0 if info.status == JobStatus.SUCCEEDED else int(info.driver_exit_code or 1)

    def stop(self) -> None:
        """Send SIGTERM to the job. Ray kills it if it does not end in time."""
        self._client.stop_job(self.id)

    async def _tail(self) -> None:
        """Write the log until its connection ends or is silent. The job's status decides whether that is the end."""
        seen = 0  # each connection sends the log from its beginning
        texts = aiter(self._client.tail_job_logs(self.id))
        with suppress(RuntimeError, TimeoutError, StopAsyncIteration):
            while True:
                async with asyncio.timeout(SILENT_S):
                    text = await anext(texts)
                new = text[max(0, self._written - seen) :]
                seen += len(text)
                self._written += len(new)
                self._write(new)

"""Ray's job submission: a local head for one job, and a job that is followed to its end."""

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.job_submission import JobStatus, JobSubmissionClient

from temper.orchestrator.cluster.ray_cluster import stop_ray
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_port

STOP_S = 3600
"""Seconds that a stopped job may take to save before Ray kills it."""
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""The variable by which Ray knows that time. By default it kills a job after 3 s."""
START_S, ANSWER_S, SILENT_S, POLL_S = 180.0, 60.0, 120.0, 0.5
"""Seconds for a head's agent to start, for an answer, for a log without news, and between two questions."""
UNANSWERED = 5
"""Questions in a row that the job server may leave without an answer."""


@contextmanager
def local_head() -> Iterator[str]:
    """Run a Ray head in the block, and yield the address of its job server. Its processes end with this one."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    head = ray.init(
        address="local",
        include_dashboard=True,
        dashboard_host=LOOPBACK,
        dashboard_port=free_port(),
        log_to_driver=False,
        configure_logging=False,
    )
    try:
        yield f"http://{head.dashboard_url}"
    finally:
        stop_ray()


class _Client(JobSubmissionClient):
    """Ray's client with a deadline: by itself it waits for a silent server without end."""

    def _do_request(
        self, method: str, endpoint: str, *, data: bytes | None = None, json_data: dict[str, Any] | None = None
    ) -> Any:
        return super()._do_request(method, endpoint, data=data, json_data=json_data, timeout=ANSWER_S)


class Job:
    """A submitted shell command. Its log goes to `write`; RAY_AUTH_TOKEN is the token of a cluster that asks for one."""

    def __init__(
        self, address: str, command: str, *, runtime_env: dict[str, Any], write: Callable[[str], None]
    ) -> None:
        logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)
        token = os.environ.get("RAY_AUTH_TOKEN")
        self._client = _Client(address, headers={"Authorization": f"Bearer {token}"} if token else None)
        self._write = write
        self._written = 0
        self.id = self._submit(command, runtime_env)

    def _submit(self, command: str, runtime_env: dict[str, Any]) -> str:
        deadline = time.monotonic() + START_S
        while True:
            try:
                return str(self._client.submit_job(entrypoint=command, runtime_env=runtime_env))
            except RuntimeError as error:  # a head answers before its agent is there, which starts jobs
                if "No available agent" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(POLL_S)

    def follow(self, *, limit_s: float = math.inf) -> int:
        """Write the log until the job has ended, and return its exit status: 1 for a job that never ran.

        Raise `OSError` if the server leaves `UNANSWERED` questions in a row, `TimeoutError` after `limit_s` seconds.
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
                if unanswered == UNANSWERED:
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {self.id} has not ended in {limit_s:.0f} s; see `ray job status {self.id}`")
            time.sleep(POLL_S)
        self._write(self._client.get_job_logs(self.id)[self._written :])
        if info.status == JobStatus.FAILED and not info.driver_exit_code:
            self._write(f"job {self.id} failed: {info.message}\n")
        return 0 if info.status == JobStatus.SUCCEEDED else int(info.driver_exit_code or 1)

    def stop(self) -> None:
        """Send SIGTERM to the job; Ray kills it if it has not ended in time."""
        self._client.stop_job(self.id)

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
                self._written += len(new)
                self._write(new)

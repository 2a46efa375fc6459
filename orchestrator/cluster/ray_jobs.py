"""Ray's job submission: a job is followed to its end."""

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ray.job_submission import JobStatus, JobSubmissionClient

STOP_S = 7200
"""Seconds for a stopped job to save before Ray kills it."""
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""Ray's variable for that time. By default Ray kills a job after 3 s."""
START_S, ANSWER_S, SILENT_S, POLL_S = 90.0, 60.0, 120.0, 0.5
"""Seconds for a head's agent to start, for an answer, for a silent log, and between two polls."""
MAX_UNANSWERED = 5
"""Consecutive requests that the job server may leave unanswered."""


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

"""A second place as the driver sees it: a tracker whose work is done by a process of its own.

    what is told --queue--> thread `to-NAME` --pipe--> process --> W&B or trackio
    metrics.jsonl -----------------------------------> process           what was sent: tracking/NAME/<id>.sent

So a library that blocks, or ends its process, holds up neither training nor the end of a run.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from temper.orchestrator.tracking.data_set import DataSet
from temper.orchestrator.tracking.sinks.sink import SinkRun
from temper.orchestrator.tracking.tracker import Ended

"""The folder in which our packages lie."""
PROCESS = "temper.orchestrator.tracking.sinks.process"
CLOSE_S = 45.0
"""How long the end of a run waits for a place, in seconds: its library alone takes some to be imported."""
KILLED_S = 5.0
"""How long a process that was killed is waited for, in seconds."""
QUIET = {
    "WANDB_ERROR_REPORTING": "false",
    "DO_NOT_TRACK": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
"""Variables with which the libraries tell nobody that they are used, and look at no GPU."""
ELSEWHERE = (
    *("WANDB_SERVICE", "WANDB_MODE", "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_DIR"),
    *("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"),
)
"""Variables that would send a run elsewhere than its settings say."""


class SinkTracker:
    """A run in a second place, which gets no nested runs, data sets or models. `say` gets the few messages for people."""

    def __init__(self, run: SinkRun, *, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        self._told: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._work, name=f"to-{run.sink}", daemon=True)
        self._thread.start()

    def params(self, values: dict[str, str]) -> None:
        self._told.put({"params": values})

    def artifact(self, path: Path) -> None:
        self._told.put({"file": str(path.absolute())})

    def episodes(self, path: Path) -> None:
        """Leave them where they are: neither place has a page for them."""

    def describe(self, note: str) -> None:
        self._told.put({"note": note})

    def stage(
        self, name: str, params: dict[str, str], seconds: float | None = None, *, data: Sequence[DataSet] = ()
    ) -> None:
        """Tell nothing: the names of the metrics say of which stage they are."""

    def model(self, path: Path, facts: dict[str, str]) -> None:
        """Tell nothing: the model stays in the run's folder."""

    def close(self, ended: Ended, *, timeout_s: float = CLOSE_S) -> None:
        """Let the process send what is left for at most `timeout_s` seconds, and end it then."""
        deadline = monotonic() + timeout_s
        self._ending = True
        self._told.put({"end": ended.value})
        self._told.put(None)
        self._thread.join(timeout_s)
        status: int | None = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                status = self._process.wait(max(0.0, deadline - monotonic()))
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # as where a disk that does not answer keeps it
                self._process.wait(KILLED_S)
        if status != 0:
            why = f"in {timeout_s:.0f} s" if status is None else f"(status {status}; {self._log} has what it printed)"
            self._say(f"tracking: not all reached {self._run.sink} {why}; the same command sends the rest")

    @property
    def _log(self) -> Path:
        return Path(self._run.memory) / "log"

    def _work(self) -> None:
        """Be the thread that starts the process and tells it, and have another one that hears it."""
        try:
            self._process = self._start()
        except OSError as error:
            self._say(f"tracking: nothing can be sent to {self._run.sink} ({error}); the run goes on")
            return
        threading.Thread(target=self._hear, args=(self._process,), name=f"from-{self._run.sink}", daemon=True).start()
        assert self._process.stdin is not None
        message: dict[str, Any] | None = asdict(self._run)
        with suppress(BrokenPipeError):  # it ended, which the other thread tells
            while message is not None:
                self._process.stdin.write(json.dumps(message) + "\n")
                self._process.stdin.flush()
                message = self._told.get()

    def _start(self) -> "subprocess.Popen[str]":
        Path(self._run.memory).mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", PROCESS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(self._run),
                start_new_session=True,
                text=True,
                encoding="utf-8",
            )

    def _hear(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._say(line.rstrip("\n"))
        if not self._ending:
            self._say(
                f"tracking: the process that sends to {self._run.sink} ended ({self._log} has what it printed); the run goes "
                "on, and what is left is sent when the same command starts it again"
            )


def _environment(run: SinkRun) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    path = os.pathsep.join(filter(None, sys.path))
    own = {"PYTHONPATH": path, "WANDB_DATA_DIR": run.memory, "WANDB_CACHE_DIR": run.memory}
    return kept | QUIET | own | ({"TRACKIO_DIR": run.store} if run.store else {})

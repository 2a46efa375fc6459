"""A child process that answers lines of JSON, under a deadline."""

import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from temper.envs.core.errors import GraderError
from temper.envs.sandbox.seal_probe import require_seal

START_S = 120.0
VARIABLES = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""The whole environment of a child. Sets have one order in every process, so that generation from a seed is deterministic."""


class NotStarted(GraderError):
    """The process ended or was late before it was ready."""


class LineProcess:
    """Runs a Python file that writes a line when it is ready, and one for each line that it reads. Thread-safe. `lock` keeps
    requests together.

    It starts on first use and restarts after its loss. `who` names it in messages. A `trusted` one gets the environment
    variables and the stderr of this process and has no seal.
    """

    def __init__(
        self, child: Path, who: str, arguments: Sequence[str] = (), *, trusted: bool = False, start_s: float = START_S
    ) -> None:
        self.child, self.who, self.arguments, self.trusted = child, who, tuple(arguments), trusted
        self.start_s = start_s
        self.lock = threading.RLock()
        self.ready: dict[str, Any] = {}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it if it does not run, with its first line in `ready`. Raise `GraderError` if its seal is too weak."""
        with self.lock:
            if self._process is None:
                self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", str(self.child), *self.arguments],
            env={**os.environ, **VARIABLES} if self.trusted else VARIABLES,
            cwd="/",
            text=True,
            encoding="utf-8",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self.trusted else subprocess.DEVNULL,
        )
        line = self._line(self._process, self.start_s)
        if not line:
            self.close()
            remedy = "read its error in this worker's log" if self.trusted else "install the packages that it imports"
            raise NotStarted(f"{self.child.name} ended or was not ready in {self.start_s:g} s; {remedy}")
        self.ready = json.loads(line)
        if self.trusted:
            return
        try:
            require_seal(self.ready["seal"], self.who)
        except GraderError:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any], *, seconds: float) -> dict[str, Any] | None:
        """Return the answer to a request. If it is late or the process died, end the process and return None."""
        with self.lock:
            return self._ask(request, seconds)

    def _ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        stuck = threading.Timer(seconds, process.kill)  # a stopped process does not read a long line
        stuck.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            stuck.cancel()
            line = self._line(process, seconds)
        except OSError:
            line = ""
        finally:
            stuck.cancel()
        if not line:
            self.close()
            return None
        return dict(json.loads(line))

    def close(self) -> None:
        with self.lock:
            if self._process is not None:
                self._process.kill()
                self._process.communicate()
                self._process = None

    @staticmethod
    def _line(process: subprocess.Popen[str], seconds: float) -> str:
        """Return the next line of output, or empty if none begins in time."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            return process.stdout.readline() if selector.select(seconds) else ""

"""A child process that answers lines of JSON, under a deadline."""

import json
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from temper.envs.core.errors import GraderError
from temper.envs.sandbox.seal_probe import require_seal

START_S = 120.0
VARIABLES = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""All that a child sees. Sets have one order in every process, so that what is made from a seed is always the same."""


class LineProcess:
    """Runs a Python file that writes a line when it is ready and one for each line that it reads; for one thread.

    It is started when first needed, and again after it was lost.
    """

    def __init__(self, child: Path, arguments: Sequence[str] = ()) -> None:
        """`arguments` are those of its command line."""
        self.child = child
        self.arguments = tuple(arguments)
        self.ready: dict[str, Any] = {}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> bool:
        """Start it where it does not run, with its first line in `ready`; return whether it did. GraderError where it can't."""
        if self._process is not None:
            return False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", str(self.child), *self.arguments],
            env=VARIABLES,
            cwd="/",
            text=True,
            encoding="utf-8",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        line = self._line(self._process, START_S)
        if not line:
            self.close()
            raise GraderError(f"{self.child.name} did not start; are the packages that it imports installed?")
        self.ready = json.loads(line)
        return True

    def require_seal(self, who: str) -> None:
        """Raise `GraderError` where the process says of itself that it is sealed too little, which ends it."""
        try:
            require_seal(self.ready["seal"], who)
        except GraderError:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any], *, seconds: float) -> dict[str, Any] | None:
        """Return the answer to a request; None where none came in time or the process died, which ends it."""
        self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = self._line(process, seconds)
        except OSError:
            line = ""
        if not line:
            self.close()
            return None
        return dict(json.loads(line))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    @staticmethod
    def _line(process: subprocess.Popen[str], seconds: float) -> str:
        """Return the next line of its output, empty where none begins in time."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            return process.stdout.readline() if selector.select(seconds) else ""

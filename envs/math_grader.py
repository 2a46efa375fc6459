"""Equality of mathematical expressions with a deadline: a child process runs math-verify (`envs.math_child`)."""

import json
import os
import selectors
import subprocess
import sys
import threading
from pathlib import Path

from envs.errors import GraderError

SCRIPT = Path(__file__).with_name("math_child.py")
START_S = 120.0
DEADLINE_S = 2.0


class MathGrader:
    """One child process, started when first needed and after each kill. Checks go one at a time, from any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None

    def equal(self, *, gold: str, answer: str) -> bool | None:
        """Whether gold and answer are equal; None where the answer ran over the deadline or broke the child.

        GraderError where the child can't be started, or fails on the gold answer alone.
        """
        with self.lock:
            same = self._check(gold, answer)
            if same is None and not self._check(gold, gold):
                raise GraderError(f"the gold answer {gold[:80]!r} can't be checked")
            return same

    def _check(self, gold: str, answer: str) -> bool | None:
        process = self.process or self._start()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"gold": gold, "answer": answer}) + "\n")
            process.stdin.flush()
        except OSError:
            self._stop()
            return None
        line = _line(process, DEADLINE_S)
        if line:
            return bool(json.loads(line)["equal"])
        self._stop()
        return None

    def _start(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(SCRIPT)],
            env={},
            cwd="/",
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        ready = _line(self.process, START_S)
        if '"warm": true' not in ready:
            self._stop()
            raise GraderError(f"math-verify could not be started ({ready!r}); is math-verify installed?")
        return self.process

    def _stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def close(self) -> None:
        """Ends the child."""
        with self.lock:
            self._stop()


def _line(process: subprocess.Popen[str], seconds: float) -> str:
    """The next line of the child's output; empty where none comes in time. The child never writes more than one."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline() if selector.select(seconds) else ""


SHARED_LOCK = threading.Lock()
SHARED: dict[int, MathGrader] = {}


def shared_grader() -> MathGrader:
    """The grader of this process, by process id so that a fork does not share its parent's."""
    with SHARED_LOCK:
        return SHARED.setdefault(os.getpid(), MathGrader())

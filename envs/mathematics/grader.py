"""Equality of mathematical expressions with a deadline: killable processes run math-verify (`grader_child`)."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from temper.envs.core.clock import stop_clock
from temper.envs.core.errors import GraderError
from temper.envs.sandbox.per_process import PerProcess
from temper.envs.sandbox.seal_probe import require_seal

CHILD = Path(__file__).with_name("grader_child.py")
START_S = 120.0
WORKERS = 8
REFERENCE_S, ANSWER_S, LEAST_CPU_S, BACKSTOP_S = 10.0, 1.2, 0.2, 30.0
POLL_S = 0.02
MAX_REPLY_BYTES = 4096


class MathWorker:
    """One worker: a channel to it, and a handle of its process that survives reuse of its id.

    Raise `OSError` if there is no worker at the other end.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.received = b""
        self.clock = time.CLOCK_MONOTONIC
        hello = self.receive(BACKSTOP_S)
        if hello is None:
            channel.close()
            raise ProcessLookupError("no worker was forked")
        self.seal: dict[str, Any] = hello["seal"]
        self.process = os.pidfd_open(hello["pid"])
        self.clock = ~hello["pid"] << 3 | 2  # its CPU time: CPUCLOCK_SCHED in the kernel's posix-timers.h

    def ask(self, reference: str, answer: str, seconds: float) -> bool:
        """Start a check. Return whether the reference answer is read within `seconds`, or False if the worker is gone."""
        try:
            self.channel.sendall(json.dumps({"reference": reference, "answer": answer}).encode() + b"\n")
        except OSError:
            return False
        reply = self.receive(seconds)
        return reply is not None and bool(reply["reference"])

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """Return the next reply, or None if it is late. The wait is longer if the worker got little CPU time."""
        try:
            start, used = time.monotonic(), time.clock_gettime(self.clock)
            while b"\n" not in self.received:
                waited = time.monotonic() - start
                if waited > BACKSTOP_S or (waited > seconds and time.clock_gettime(self.clock) - used > LEAST_CPU_S):
                    return None
                self.channel.settimeout(max(seconds - waited, POLL_S))
                with contextlib.suppress(TimeoutError):
                    part = self.channel.recv(MAX_REPLY_BYTES)
                    if not part:
                        return None
                    self.received += part
        except OSError:
            return None
        line, _, self.received = self.received.partition(b"\n")
        return dict(json.loads(line))

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)
        os.close(self.process)
        self.channel.close()


class MathGrader:
    """Workers forked by one mother process, which starts on first use and restarts after its death.

    Each check has a worker to itself, from any thread. Checks beyond `WORKERS` at a time wait. A worker killed during a
    check is replaced by a fork, so no check waits for a start.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.slots = threading.BoundedSemaphore(WORKERS)
        self.idle: list[MathWorker] = []
        self.mother: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self.warm = False

    def is_equal(self, *, reference: str, answer: str) -> bool | None:
        """Return whether reference and answer are equal, or None if the answer exceeded the deadline or broke the worker.

        Raise `GraderError` if no worker can start, or if a fresh one can't read the reference answer.
        """
        readable, same = self._try(reference, answer, REFERENCE_S)
        if not readable:
            raise GraderError(f"math-verify can't read the reference answer {reference[:80]!r}")
        return same

    def can_read(self, reference: str) -> bool:
        """Return whether a reference answer is read as fast as an answer must be."""
        return self._try(reference, "", ANSWER_S)[0]

    def _try(self, reference: str, answer: str, seconds: float) -> tuple[bool, bool | None]:
        """Return the result of `_check` by an idle worker, or by a fresh one if an idle one fails within `seconds`."""
        with stop_clock(), self.slots:
            with self.lock:
                idle = self.idle.pop() if self.idle else None
            start = time.monotonic()
            readable, same = self._check(reference, answer, idle, seconds)
            if readable or idle is None or time.monotonic() - start > seconds:
                return readable, same
            return self._check(reference, answer, None, seconds)

    def _check(
        self, reference: str, answer: str, worker: MathWorker | None, seconds: float
    ) -> tuple[bool, bool | None]:
        """Return whether the reference is readable, and whether the answer equals it, or None if the worker broke."""
        worker = worker or self._fork()
        readable = worker.ask(reference, answer, seconds)
        reply = worker.receive(ANSWER_S) if readable else None
        if reply is None or reply["worn"]:
            worker.end()
        else:
            with self.lock:
                self.idle.append(worker)
        return readable, None if reply is None else bool(reply["equal"])

    def _fork(self) -> MathWorker:
        for _ in range(2):
            with self.lock:
                control = self._warm()
                ours, theirs = socket.socketpair()
                with theirs, contextlib.suppress(OSError):
                    socket.send_fds(control, [b"fork"], [theirs.fileno()])
            with contextlib.suppress(OSError):
                worker = MathWorker(ours)
                break
            with self.lock:
                if self.control is control:
                    self._stop()
        else:
            raise GraderError("the process that runs math-verify died twice")
        try:
            require_seal(worker.seal, "math-verify")
        except GraderError:
            worker.end()
            raise
        return worker

    def start(self) -> None:
        """Start the mother if there is none, without waiting until it is warm (some seconds)."""
        with self.lock:
            self._started()

    def _started(self) -> socket.socket:
        if self.control is None:
            self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self.mother = subprocess.Popen(
                    [sys.executable, "-I", str(CHILD)],
                    env={},
                    cwd="/",
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        return self.control

    def _warm(self) -> socket.socket:
        control = self._started()
        if not self.warm:
            control.settimeout(START_S)
            try:
                ready = control.recv(MAX_REPLY_BYTES)
            except OSError:
                ready = b""
            if ready != b'{"warm": true}':
                self._stop()
                raise GraderError(f"math-verify could not be started ({ready!r}); install math-verify")
            self.warm = True
        return control

    def _stop(self) -> None:
        for worker in self.idle:
            worker.end()
        self.idle.clear()
        if self.mother is not None and self.control is not None:
            self.control.close()
            self.mother.kill()
            self.mother.wait()
            self.mother = self.control = None
        self.warm = False

    def close(self) -> None:
        with self.lock:
            self._stop()


SHARED = PerProcess(MathGrader)


def shared_grader() -> MathGrader:
    return SHARED.get()

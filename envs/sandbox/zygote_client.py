"""The parent's side of the zygote process: start it, and make it fork, kill and reap."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from temper.envs.core.errors import SandboxError

CHILD = Path(__file__).with_name("zygote_main.py")
VARIABLES = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
"""The zygote's whole environment: a fixed order of sets, one thread, since forks of more would be unsafe, and one memory
arena, since otherwise each thread of a program would take 64 MiB of its limit.
"""
START_S = 30.0
ANSWER_S = 20.0
MAX_ANSWER_BYTES = 4096


class Zygote:
    """One zygote process. Requests run one at a time, from any thread. They raise SandboxError if it is gone or stuck."""

    def __init__(self, *, level: int = 2, site: str | None = None) -> None:
        """Start it, at level 3 with namespaces. With `site`, the folder of numpy, it imports numpy."""
        self.lock = threading.Lock()
        self.broken = False  # it failed once and must be replaced
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-s", "-S", "-P", str(CHILD), str(level), *([site] if site else [])]
        with theirs:
            self.process = subprocess.Popen(
                command, env=VARIABLES, cwd="/", stdin=theirs.fileno(), stdout=subprocess.DEVNULL
            )
        try:
            ready = self._answer(START_S)
            if "error" in ready:
                raise SandboxError(f"the sandbox's zygote could not seal itself: {ready['error']}")
            self.layers, self.pid = tuple(map(str, ready["ready"])), int(ready["pid"])
        except SandboxError:
            self.close()
            raise

    def spawn(self, descriptors: list[int], cpu_s: int, memory_bytes: int, *, threads: bool = False) -> int:
        """Fork a process that serves the first descriptor, a channel. Further ones are its input and output."""
        request = {"spawn": {"cpu_s": cpu_s, "memory_bytes": memory_bytes, "threads": threads}}
        with self.lock:
            self._send(request, descriptors)
            answer = self._answer(ANSWER_S)
        if "pid" not in answer:
            self.broken = True
            raise SandboxError(f"the zygote could not start a program: {answer.get('error')}")
        return int(answer["pid"])

    def reap(self, pid: int) -> tuple[int, float] | None:
        """Return the wait status and the CPU seconds of a fork that ended by itself, or None if it still runs."""
        with self.lock:
            self._send({"reap": pid}, [])
            answer = self._answer(ANSWER_S)
        return None if answer["status"] is None else (int(answer["status"]), float(answer["cpu_s"]))

    def end(self, pid: int) -> None:
        """Have a fork killed and reaped, without waiting. If the zygote is gone, so is the fork."""
        with self.lock:
            try:
                self._send({"end": pid}, [])
            except SandboxError:
                return

    def _send(self, request: dict[str, Any], descriptors: list[int]) -> None:
        try:
            self.control.settimeout(ANSWER_S)
            socket.send_fds(self.control, [json.dumps(request).encode()], descriptors)
        except OSError as error:
            self.broken = True
            raise SandboxError(f"the sandbox's zygote is gone: {error!r}") from error

    def _answer(self, seconds: float) -> dict[str, Any]:
        """Return the next answer. A time-out ends the zygote, since later answers would be out of step."""
        try:
            self.control.settimeout(seconds)
            answer = self.control.recv(MAX_ANSWER_BYTES)
        except OSError as error:
            self.close()
            raise SandboxError(f"the sandbox's zygote does not answer: {error!r}") from error
        if not answer:
            self.broken = True
            raise SandboxError(f"the sandbox's zygote ended with status {self.process.poll()}")
        return dict(json.loads(answer))

    def close(self) -> None:
        self.broken = True
        self.control.close()
        self.process.kill()
        self.process.wait()

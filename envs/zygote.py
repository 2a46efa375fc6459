"""The parent's side of the zygote process: start it, ask it to fork, kill and reap."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from envs.errors import SandboxError

SCRIPT = Path(__file__).with_name("sandbox_zygote.py")
START_S = 30.0
ANSWER_S = 20.0
MAX_ANSWER_BYTES = 4096


class Zygote:
    """One zygote process. Requests go one at a time, from any thread; SandboxError where it is gone or stuck."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-I", "-S", str(SCRIPT)]
        with theirs:
            self.process = subprocess.Popen(command, env={}, cwd="/", stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        try:
            self.layers: tuple[str, ...] = tuple(self._answer(START_S)["ready"])
        except SandboxError:
            self.close()
            raise

    def spawn(self, channel: socket.socket, *, cpu_s: int, memory_bytes: int) -> int:
        """Forks a process that serves `channel`; its id."""
        request = {"spawn": {"cpu_s": cpu_s, "memory_bytes": memory_bytes}}
        with self.lock:
            self._send(request, [channel.fileno()])
            answer = self._answer(ANSWER_S)
        if "pid" not in answer:
            raise SandboxError(f"the zygote could not start a program: {answer.get('error')}")
        return int(answer["pid"])

    def kill(self, pid: int) -> tuple[int, float]:
        """Kills and reaps a forked process: (wait status, CPU seconds)."""
        with self.lock:
            self._send({"kill": pid}, [])
            answer = self._answer(ANSWER_S)
        return int(answer["status"]), float(answer["cpu_s"])

    def end(self, pid: int) -> None:
        """Has a forked process killed and reaped, without waiting for it; a zygote that is gone took it along."""
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
            raise SandboxError(f"the sandbox's zygote is gone: {error!r}") from error

    def _answer(self, seconds: float) -> dict[str, Any]:
        """The next answer. After a time-out answers would be out of step, so the zygote is ended."""
        try:
            self.control.settimeout(seconds)
            answer = self.control.recv(MAX_ANSWER_BYTES)
        except OSError as error:
            self.close()
            raise SandboxError(f"the sandbox's zygote does not answer: {error!r}") from error
        if not answer:
            raise SandboxError(f"the sandbox's zygote ended with status {self.process.poll()}")
        return dict(json.loads(answer))

    def close(self) -> None:
        """Ends the zygote and with it everything it forked."""
        self.control.close()
        self.process.kill()
        self.process.wait()

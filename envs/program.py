"""One model-written program in its sealed process: requests go in, replies come out, nothing is judged.

What a program does to itself (time, memory, output, crash) is a `Reply`. `SandboxError` is raised only for what it
can't bring about: the zygote died, could not fork or could not seal.
"""

import json
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any

from envs import literals
from envs.errors import SandboxError
from envs.zygote import ANSWER_S, Zygote

MAX_REPLY_BYTES = 64 * 2**10
MAX_SENT_AHEAD_BYTES = 32 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one program may use, over all its calls."""

    wall_s: float = 4.0  # seconds that we wait for it, enforced from outside
    cpu_s: int = 1  # CPU seconds
    memory_mb: int = 512  # address space, MiB


class Kind(Enum):
    """What came of a request."""

    VALUE = "value"  # a plain value
    RAISED = "raised"  # an exception left the program
    UNFIT = "unfit"  # the result is not plain data
    OUTPUT = "output"  # the result is longer than 64 KiB
    ASK = "ask"  # a check asks for a result of the candidate
    TIME = "time"  # over the wall-clock or CPU limit
    MEMORY = "memory"  # over the memory limit
    CRASH = "crash"  # the process ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer of a program to one request."""

    kind: Kind
    value: Any = None
    detail: str = ""

    @property
    def policy_fault(self) -> bool:
        """Whether the program broke a limit or did what is forbidden, rather than being just wrong."""
        forbidden = self.kind is Kind.RAISED and self.detail.startswith("PermissionError")
        return forbidden or self.kind in (Kind.TIME, Kind.MEMORY, Kind.OUTPUT, Kind.CRASH)


class Program:
    """One sealed process that holds one program. Use as a context manager; leaving it kills the process."""

    def __init__(self, zygote: Zygote, limits: Limits) -> None:
        self.zygote, self.limits = zygote, limits
        self.left_s = ANSWER_S
        self.sealed = False
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.pid: int | None = zygote.spawn(theirs, cpu_s=limits.cpu_s, memory_bytes=limits.memory_mb * 2**20)

    def load(self, source: str) -> Reply:
        """Runs the source of the program."""
        return self._request(_frame({"source": source}))

    def call(self, name: str, arguments: list[Any]) -> Reply:
        """Calls a function that the source defined, with plain arguments."""
        return self._request(_frame({"call": [name, arguments]}))

    def results(self, source: str, name: str, calls: Sequence[list[Any]]) -> Iterator[Reply]:
        """The reply to loading the source, then to each call, until one has no value. Small calls are sent ahead."""
        frames = [_frame({"source": source}), *(_frame({"call": [name, arguments]}) for arguments in calls)]
        if sum(map(len, frames)) <= MAX_SENT_AHEAD_BYTES:
            frames = [b"".join(frames)] + [b""] * len(calls)
        for frame in frames:
            reply = self._request(frame)
            yield reply
            if reply.kind is not Kind.VALUE:
                return

    def check(self, name: str, *, entry_point: str) -> Reply:
        """Calls a check function with a stand-in for the candidate, which it may also call by its own name.

        Every `ASK` that comes back must be met by `answer`.
        """
        return self._request(_frame({"check": [name, entry_point]}))

    def answer(self, value: Any) -> Reply:
        """Answers an `ASK` and goes on with the check."""
        return self._request(_frame({"value": value}))

    def _request(self, frame: bytes) -> Reply:
        """Sends a frame and reads the next reply, within the seconds that are left."""
        try:
            if not self.sealed:
                self._confirm_seal()
            start = time.monotonic()
            try:
                self.channel.settimeout(max(self.left_s, 0.001))
                self.channel.sendall(frame)
                return _reply(self._read())
            finally:
                self.left_s -= time.monotonic() - start
        except TimeoutError:
            return Reply(kind=Kind.TIME, detail=f"over {self.limits.wall_s} s")
        except ValueError as error:
            return Reply(kind=Kind.OUTPUT, detail=str(error)[:200])
        except OSError:
            return self._ended()

    def _confirm_seal(self) -> None:
        """Reads the first frame, which is written before any foreign code runs; the program's time starts after it."""
        try:
            hello = self._read()
        except OSError as error:
            raise SandboxError(f"a program's process could not be sealed: {error!r}") from error
        if b"sealed" not in hello:
            raise SandboxError(f"a program's process answered {hello[:80]!r} when it should have been sealed")
        self.sealed, self.left_s = True, self.limits.wall_s

    def _read(self) -> bytes:
        deadline = time.monotonic() + self.left_s
        (length,) = struct.unpack(">I", self._exactly(4, deadline))
        if length > MAX_REPLY_BYTES:
            raise ValueError(f"a reply of {length} bytes")
        return self._exactly(length, deadline)

    def _exactly(self, count: int, deadline: float) -> bytes:
        parts = []
        while count:
            self.channel.settimeout(max(deadline - time.monotonic(), 0.001))
            part = self.channel.recv(count)
            if not part:
                raise ConnectionError("the channel was closed")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _ended(self) -> Reply:
        """The process closed its channel: by its CPU limit, or by its own doing."""
        self.channel.close()
        if self.pid is None:
            return Reply(kind=Kind.CRASH, detail="it had ended before")
        pid, self.pid = self.pid, None
        status, cpu_s = self.zygote.kill(pid)
        if cpu_s >= self.limits.cpu_s * 0.95:
            return Reply(kind=Kind.TIME, detail=f"over {self.limits.cpu_s} s of CPU")
        return Reply(kind=Kind.CRASH, detail=f"ended by {_status_text(status)}")

    def close(self) -> None:
        """Kills the process. A zygote that is gone took it along."""
        self.channel.close()
        if self.pid is not None:
            self.zygote.end(self.pid)
            self.pid = None

    def __enter__(self) -> "Program":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _frame(message: dict[str, Any]) -> bytes:
    body = json.dumps({name: literals.encode(value) for name, value in message.items()}, separators=(",", ":")).encode()
    return struct.pack(">I", len(body)) + body


def _status_text(status: int) -> str:
    number = os.waitstatus_to_exitcode(status)
    return f"signal {signal.Signals(-number).name}" if number < 0 else f"exit code {number}"


def _reply(body: bytes) -> Reply:
    """A frame of a program, which is free to send rubbish."""
    try:
        ((name, content),) = json.loads(body).items()
        kind = Kind(name)
        if kind in (Kind.VALUE, Kind.ASK):
            return Reply(kind=kind, value=literals.decode(content))
    except (ValueError, TypeError, AttributeError, RecursionError, LookupError) as error:
        return Reply(kind=Kind.UNFIT, detail=f"a broken reply: {error}"[:200])
    detail = str(content)[:200]
    return Reply(kind=Kind.MEMORY if detail.startswith("MemoryError") else kind, detail=detail)

"""One model-written program in its sandboxed process: requests go in, replies come out, nothing is judged.

The program's own failures (time, memory, output, crash) are a `Reply`. `SandboxError` means a failure that it can't cause:
the zygote died, could not fork or could not seal.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Self

from temper.envs.core.errors import EnvironmentFault, SandboxError
from temper.envs.sandbox import literals
from temper.envs.sandbox.runner import MAX_REPLY_BYTES, MAX_REQUEST_BYTES
from temper.envs.sandbox.zygote_client import ANSWER_S, Zygote

MAX_LATE_S = 5.0  # for the rest of a reply, which may arrive byte by byte
LEAST_QUEUED_S, MAX_QUEUED_S = 0.05, 120.0  # waits for a CPU: the shortest that counts, and the largest extension
CREDENTIALS = struct.Struct("iII")  # process, user and group, which the kernel adds to a message
EXIT_S, EXIT_POLL_S = 0.2, 0.001  # an ending process closes its channel slightly earlier


class Waits(threading.local):
    """Seconds for which the programs that this thread has ended waited for a CPU."""

    seconds = 0.0


WAITS = Waits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one program, over all its calls."""

    wall_s: float = 4.0  # seconds of running or sleeping, enforced from outside
    cpu_s: int = 1  # CPU seconds
    memory_mb: int = 512  # address space, MiB
    reply_bytes: int = MAX_REPLY_BYTES  # of one reply or request


class ReplyKind(Enum):
    """The result of a request."""

    VALUE = "value"  # a plain value
    RAISED = "raised"  # an exception left the program
    UNFIT = "unfit"  # the result is not plain data
    OUTPUT = "output"  # the result is longer than `Limits.reply_bytes`
    ASK = "ask"  # a request to the caller, in `converse` only
    TIME = "time"  # exceeded the wall-clock or CPU limit
    MEMORY = "memory"  # exceeded the memory limit
    CRASH = "crash"  # the process ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A program's answer to one request."""

    kind: ReplyKind
    value: Any = None
    detail: str = ""

    @property
    def policy_fault(self) -> bool:
        """Whether the program broke a limit or did something forbidden, beyond being wrong."""
        forbidden = self.kind is ReplyKind.RAISED and self.detail.startswith("PermissionError")
        return forbidden or self.kind in (ReplyKind.TIME, ReplyKind.MEMORY, ReplyKind.OUTPUT, ReplyKind.CRASH)


class SealedProcess:
    """One sandboxed process with one program. Use it as a context manager, which kills the process at the end.

    `streams` are the descriptors of its standard input and output, by default /dev/null. With `threads` it may start up to
    `temper.envs.sandbox.thread_limit.MOST_THREADS`.
    """

    def __init__(self, zygote: Zygote, limits: Limits, *, streams: Sequence[int] = (), threads: bool = False) -> None:
        self.zygote, self.limits = zygote, limits
        self.left_s, self.deadline, self.queued_s = ANSWER_S, 0.0, 0.0
        self.sealed = False
        self.waits: dict[str, float] = {}  # of its threads for a CPU
        self.exit_code: int | None = None  # if the process ended before its reply
        self.channel, theirs = socket.socketpair()
        self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.process = 0  # its process id in our namespace; `pid` is in the zygote's
        with theirs:
            self.pid: int | None = zygote.spawn(
                [theirs.fileno(), *streams], limits.cpu_s, limits.memory_mb * 2**20, threads=threads
            )

    def load(self, source: str) -> Reply:
        return self._request(frame({"source": to_unicode(source)}))

    def call(self, name: str, arguments: list[Any]) -> Reply:
        return self._request(frame({"call": name, "arguments": arguments}))

    def send(self, source: str, name: str, arguments: list[Any]) -> None:
        """Send the source and the only call ahead. `reply` returns the result.

        The process reads them before it runs any of the source, so that a program can't block the sender.
        """
        try:
            self.channel.settimeout(ANSWER_S)
            self.channel.sendall(frame({"source": to_unicode(source), "call": name, "arguments": arguments}))
        except OSError as error:
            self.zygote.broken = True
            raise SandboxError(f"a program's process could not be given its source: {error!r}") from error

    def reply(self) -> Reply:
        return self._request(b"")

    def converse(self, name: str, source: str = "") -> Reply:
        """Call a function with `ask`, by which it sends requests. The caller must `answer` each `ASK`. `source` runs
        before.
        """
        return self._request(frame({"source": source, "converse": name}), may_ask=True)

    def answer(self, value: Any) -> Reply:
        return self._request(frame({"value": value}), may_ask=True)

    def _request(self, sent: bytes, *, may_ask: bool = False) -> Reply:
        """Send a frame and read the next reply, within the remaining seconds."""
        try:
            if not self.sealed:
                self._confirm_seal()
            self.deadline = time.monotonic() + self.left_s
            try:
                self.channel.settimeout(max(self.left_s, 0.001))
                if sent:  # an empty send would fail if the program has answered and ended
                    self.channel.sendall(sent)
                return _reply(self._read(), may_ask=may_ask)
            finally:
                self.left_s = self.deadline - time.monotonic()
        except TimeoutError:
            return Reply(kind=ReplyKind.TIME, detail=f"over {self.limits.wall_s} s")
        except ValueError as error:
            return Reply(kind=ReplyKind.OUTPUT, detail=str(error)[:200])
        except OSError:
            return self._ended()

    def _confirm_seal(self) -> None:
        """Read the first frame, which is written before any foreign code runs. The program's time starts after it."""
        self.deadline = time.monotonic() + self.left_s
        try:
            self.channel.settimeout(self.left_s)
            for *_, credentials in self.channel.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size), socket.MSG_PEEK)[1]:
                self.process = CREDENTIALS.unpack(credentials)[0]
            hello = self._read()
        except OSError as error:
            self.zygote.broken = True
            raise SandboxError(f"a program's process could not be sealed: {error!r}") from error
        if b"sealed" not in hello:
            self.zygote.broken = True
            raise SandboxError(f"a program's process sent {hello[:80]!r} instead of its seal")
        self.sealed, self.left_s = True, self.limits.wall_s

    def _read(self) -> bytes:
        (length,) = struct.unpack(">I", self._exactly(4))
        if length > self.limits.reply_bytes:
            raise ValueError(f"a reply of {length} bytes")
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            left_s = self.deadline - time.monotonic()
            if left_s < -MAX_LATE_S:
                raise TimeoutError
            self.channel.settimeout(max(left_s, 0.001))
            try:
                part = self.channel.recv(count)
            except TimeoutError:
                self._extend()
                continue
            if not part:
                raise ConnectionError("the channel was closed")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _extend(self) -> None:
        """Extend the deadline by the process's wait for a CPU. Raise `TimeoutError` if it did not wait."""
        queued_s = self._queued()
        more_s = min(queued_s - self.queued_s, MAX_QUEUED_S - self.queued_s)
        if more_s < LEAST_QUEUED_S:
            raise TimeoutError
        self.queued_s = queued_s
        self.deadline += more_s

    def _queued(self) -> float:
        """Return the seconds for which its threads were ready but had no CPU, 0 if the kernel does not report it."""
        folder = f"/proc/{self.process}/task"
        with contextlib.suppress(OSError, IndexError):
            for thread in os.listdir(folder):
                with open(f"{folder}/{thread}/schedstat", encoding="ascii") as file:
                    self.waits[thread] = int(file.read().split()[1]) / 1e9
        return sum(self.waits.values())

    def _ended(self) -> Reply:
        """Return the cause of the closed channel: the process ended by its CPU limit or otherwise, or closed it."""
        self.channel.close()
        if self.pid is None:
            return Reply(kind=ReplyKind.CRASH, detail="it had ended before")
        waited_s = self._queued()  # available until the process is reaped
        deadline = time.monotonic() + EXIT_S
        while (ending := self.zygote.reap(self.pid)) is None:
            if time.monotonic() > deadline:
                return Reply(kind=ReplyKind.CRASH, detail="it closed its channel")
            time.sleep(EXIT_POLL_S)
        self.pid, (status, cpu_s) = None, ending
        WAITS.seconds += waited_s
        self.exit_code = code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL and cpu_s >= self.limits.cpu_s / 2:
            return Reply(kind=ReplyKind.TIME, detail=f"over {self.limits.cpu_s} s of CPU")
        ended_by = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
        return Reply(kind=ReplyKind.CRASH, detail=f"ended by {ended_by}")

    def close(self) -> None:
        self.channel.close()
        if self.pid is not None:
            WAITS.seconds += self._queued()
            self.zygote.end(self.pid)
            self.pid = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def to_unicode(source: str) -> str:
    """Return a source as valid Unicode, so that any model output can be sent."""
    return source.encode(errors="replace").decode()


def frame(message: dict[str, Any]) -> bytes:
    """Encode a message to a program's process: its length in 4 bytes, then JSON."""
    try:
        forms = {name: literals.encode(value) for name, value in message.items()}
    except literals.NotPlain as error:
        raise EnvironmentFault(f"a program can't be given this: {error}") from error
    body = json.dumps(forms, separators=(",", ":")).encode()
    if len(body) > MAX_REQUEST_BYTES:
        raise EnvironmentFault(f"a program can't be given {len(body)} bytes, at most {MAX_REQUEST_BYTES}")
    return struct.pack(">I", len(body)) + body


def _reply(body: bytes, *, may_ask: bool) -> Reply:
    try:
        ((name, content),) = json.loads(body).items()
        kind = ReplyKind(name)
        if kind is ReplyKind.ASK and not may_ask:
            raise ValueError("a request outside a conversation")
        if kind in (ReplyKind.VALUE, ReplyKind.ASK):
            return Reply(kind=kind, value=literals.decode(content))
    except (ValueError, TypeError, AttributeError, RecursionError, LookupError) as error:
        return Reply(kind=ReplyKind.UNFIT, detail=f"a broken reply: {error}"[:200])
    detail = str(content)[:200].encode(errors="replace").decode()
    return Reply(kind=ReplyKind.MEMORY if detail.startswith("MemoryError") else kind, detail=detail)

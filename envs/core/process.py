"""Processes of a run as the supervision sees them: name, place, heartbeat, end."""

import faulthandler
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import Any, Literal, Protocol, TypeVar

T = TypeVar("T")
STACKS_SIGNAL = signal.SIGUSR2
"""A process that called `show_stacks_on_signal` writes its stacks to standard error on this signal."""
STDERR = 2


class ProcessDied(RuntimeError):
    """A process of the run ended unexpectedly: out of memory, killed, or its machine failed."""


class WorkerDied(ProcessDied):
    """A rollout worker or its engine's process died."""


class LearnerDied(ProcessDied):
    """A rank of the learner died. The current step of all ranks is lost."""


class JudgeDied(ProcessDied):
    """The server of a judge's model ended."""


class ResultLost(RuntimeError):
    """A stored result of a process is gone: its machine failed."""


class StoredResult(Protocol):
    """A result that stays in the memory of its process's machine."""

    async def read(self) -> Any:
        """Return the result. Raise `ResultLost` if it is gone."""
        ...


def wrap_in_shell(command: Sequence[str]) -> list[str]:
    """Return the command as a child of a shell. Ray kills a dead worker's children, but not its grandchildren.

    The command then sees the end of its input, and can remove its containers.
    """
    return ["sh", "-c", 'trap : INT; "$@"; exit', "sh", *command]


def require_python(python: str, package: str) -> None:
    """Raise `ValueError` if the option `python` of an environment names no program. `package` is needed there."""
    if shutil.which(python) is None:
        raise ValueError(f"options.python={python!r} is not an executable; set the path of a Python that has {package}")


def kill_group(leader: int) -> None:
    """Kill the process group of this leader, whose children may have outlived it."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


@contextmanager
def set_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process during the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The progress report of a process. A stuck process does not answer, or is busy without progress.

    `progress` counts finished pieces of work. `doing` is the longest running task, "" if idle. `quiet_s` is the time since
    the last progress while busy, 0 if idle. `tokens` counts the tokens that its engine has sampled.
    """

    progress: int
    doing: str
    quiet_s: float
    tokens: int = 0


class ProgressCounter:
    """Counts the progress of a worker. Thread-safe; no call blocks."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._numbers = count()
        self._busy: dict[int, str] = {}
        self._progress = self._tokens = 0
        self._last = clock()

    def advance(self, times: int = 1) -> None:
        """Count finished work: a micro-batch, an engine pass or an environment's answer."""
        self._progress += times
        self._last = self._clock()

    def count_tokens(self, tokens: int) -> None:
        """Count an engine pass and its sampled tokens."""
        self.advance()
        self._tokens += tokens

    @contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        """Mark the process as busy during the block, which must make progress. Its start and end count. Blocks may
        overlap.
        """
        number = next(self._numbers)
        self.advance()
        self._busy[number] = doing
        try:
            yield
        finally:
            del self._busy[number]
            self.advance()

    def advance_each(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            self.advance()
            yield item

    def heartbeat(self) -> Heartbeat:
        """Return the current state."""
        busy = list(self._busy.values())
        return Heartbeat(
            progress=self._progress,
            doing=busy[0] if busy else "",
            quiet_s=self._clock() - self._last if busy else 0.0,
            tokens=self._tokens,
        )


def show_stacks_on_signal() -> None:
    """Write the stacks of all threads to standard error on `STACKS_SIGNAL`, even if the process hangs."""
    faulthandler.register(STACKS_SIGNAL, file=STDERR, all_threads=True)


ProcessState = Literal["starting", "serving", "asleep", "draining"]
"""A process is asleep while another one uses their shared device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The location of a process: its id and the name of its machine, which may not be unique in the cluster.

    `node` is the cluster's id of its node, or None for the driver's node.
    """

    pid: int
    host: str
    node: str | None = None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + ("" if self.node is None else f", node {self.node[:8]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUsage:
    """Memory that a process holds on its device, in bytes.

    `states` counts optimiser states, gradients and a reference model. `cache` is the key-value cache of an engine. `main`
    is the main memory of the process, which is the device on a CPU. `device` is the used memory of the GPU by all
    processes, None on a CPU.
    """

    weights: int = 0
    states: int = 0
    cache: int = 0
    main: int = 0
    device: int | None = None


class WatchedProcess(Protocol):
    """A rollout worker or a rank of the learner."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> Place | None:
        """Its location, or None until it runs."""
        ...

    async def heartbeat(self) -> Heartbeat:
        """Return its progress report."""
        ...

    def kill(self) -> None:
        """Kill the process. No effect if it has ended."""
        ...


NOTHING: Mapping[str, object] = {}


class Process(Protocol):
    """A process with one object, whose methods are called remotely. A call raises `ProcessDied` if the process has ended."""

    @property
    def place(self) -> Place | None: ...

    async def wait_until_running(self) -> None:
        """Wait until the process runs. Its `place` is known from then on."""
        ...

    async def call(
        self, method: str, *args: object, named: Mapping[str, object] = NOTHING, cancels: bool = False
    ) -> Any:
        """Return the result of a method. With `cancels`, cancelling the call cancels it in the process too."""
        ...

    async def call_stored(self, method: str, *args: object) -> tuple[Any, StoredResult]:
        """Return the first of two results of a method, and a reference to the second.

        Cancelling the call cancels it in the process too.
        """
        ...

    def begin(self, method: str, *args: object, named: Mapping[str, object] = NOTHING) -> Awaitable[object]:
        """Call a method. Its awaitable result can be passed to other processes before it is ready."""
        ...

    async def put(self, data: object) -> object:
        """Copy data to the process. Return a reference that replaces the data in a call."""
        ...

    async def host(self) -> str:
        """Return the address at which other processes reach it."""
        ...

    def kill(self) -> None: ...

    async def close(self) -> None:
        """Let the object close its resources, then end the process."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """The state of a rollout worker or rank. `watched` is False while it starts and sends no heartbeats. `tickets` are its
    groups in flight.
    """

    name: str
    state: ProcessState
    process: WatchedProcess
    watched: bool = True
    tickets: tuple[int, ...] = ()
    restarts: int = 0

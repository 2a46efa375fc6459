"""A process of a run that is watched, as those see it who watch: its name, its place, its signs of life, its end."""

import faulthandler
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import Any, Literal, Protocol, TypeVar

T = TypeVar("T")
STACKS_SIGNAL = signal.SIGUSR2
"""The signal on which a process that called `show_stacks_on_signal` writes its stacks to standard error."""
STDERR = 2


class ProcessDied(RuntimeError):
    """A process of the run ended by itself: out of memory, killed, or its machine is gone."""


class WorkerDied(ProcessDied):
    """A rollout worker died, or its engine's process."""


class LearnerDied(ProcessDied):
    """A rank of the learner died. The step that the ranks had begun together is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The state that a process reports. One that is stuck either does not answer, or is busy and long quiet.

    `progress` counts its beats, `doing` is its longest task ("" if it is idle), `quiet_s` the
    seconds since its last beat while it is busy, 0 if it is idle. `tokens` counts the tokens that its engine has sampled.
    """

    progress: int
    doing: str
    quiet_s: float
    tokens: int = 0


class ProgressCounter:
    """Counts the progress of a worker. Any thread may use it, and no call waits."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._numbers = count()
        self._busy: dict[int, str] = {}
        self._progress = self._tokens = 0
        self._last = clock()

    def advance(self, times: int = 1) -> None:
        """Count a piece of work as done: a micro-batch, a pass of the engine, an answer of an environment."""
        self._progress += times
        self._last = self._clock()

    def count_tokens(self, tokens: int) -> None:
        """Count a pass of the engine, and the tokens that it sampled."""
        self.advance()
        self._tokens += tokens

    @contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        """Be busy during the block, which has to beat; its beginning and its end are beats. Blocks may overlap."""
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
        """Return its present state."""
        busy = list(self._busy.values())
        return Heartbeat(
            progress=self._progress,
            doing=busy[0] if busy else "",
            quiet_s=self._clock() - self._last if busy else 0.0,
            tokens=self._tokens,
        )


def show_stacks_on_signal() -> None:
    """Make `STACKS_SIGNAL` write the stacks of all threads of this process to its standard error, whatever it is doing."""
    faulthandler.register(STACKS_SIGNAL, file=STDERR, all_threads=True)


ProcessState = Literal["starting", "serving", "asleep", "draining"]
"""What a process does: it is asleep while another one has the device that they share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """If a process runs: its number and the name of its machine, which others of the cluster may have too.

    `node` is how the cluster calls its node, None for that of the driver.
    """

    pid: int
    host: str
    node: str | None = None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + ("" if self.node is None else f", node {self.node[:8]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUsage:
    """What a process has on its device, and how much memory it takes, in bytes.

    `states` are those of the optimiser, gradients and a reference, `cache` is the keys and values of an engine. `main` is the
    main memory of the process that computes, which on a CPU is the device; `device` is what is taken of a GPU, by all who
    share it, None on a CPU.
    """

    weights: int = 0
    states: int = 0
    cache: int = 0
    main: int = 0
    device: int | None = None


class WatchedProcess(Protocol):
    """A rollout worker or a rank of the learner, wherever it runs."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> Place | None:
        """If it runs; None until it does."""
        ...

    async def heartbeat(self) -> Heartbeat:
        """Return its signs of life."""
        ...

    def kill(self) -> None:
        """End the process at once, or nothing if it has ended."""
        ...


NOTHING: Mapping[str, object] = {}


class Process(Protocol):
    """A process with one object, whose methods are called from here. A call raises `ProcessDied` if the process has ended."""

    @property
    def place(self) -> Place | None: ...

    async def wait_until_running(self) -> None:
        """Wait until the process runs. From then on its `place` is known."""
        ...

    async def call(
        self, method: str, *args: object, named: Mapping[str, object] = NOTHING, cancels: bool = False
    ) -> Any:
        """Return what a method of the object returns. With `cancels` a call that is cancelled ends in the process too."""
        ...

    def begin(self, method: str, *args: object, named: Mapping[str, object] = NOTHING) -> Awaitable[object]:
        """Call a method. Its awaitable result can be passed to other processes before it is ready."""
        ...

    async def put(self, data: object) -> object:
        """Copy data to where the process reads it. Return a reference that replaces the data in a call."""
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
    """What a rollout worker or a rank does. `watched` says whether it is to give signs of life, which it need not while it
    starts; `tickets` are its groups in flight.
    """

    name: str
    state: ProcessState
    process: WatchedProcess
    watched: bool = True
    tickets: tuple[int, ...] = ()
    restarts: int = 0

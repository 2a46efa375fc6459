"""Signs of life of a worker process, by which another one knows that it works, and the errors of one that has died."""

import faulthandler
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import TypeVar

T = TypeVar("T")
STACKS_SIGNAL = signal.SIGUSR2
"""What makes a process that called `show_stacks_on_signal` write its stacks to its standard error."""
STDERR = 2


class ProcessDied(RuntimeError):
    """A process of the run ended by itself: out of memory, killed, or its machine is gone."""


class WorkerDied(ProcessDied):
    """A rollout worker died, or its engine's process."""


class LearnerDied(ProcessDied):
    """A rank of the learner died, and with it what the ranks had begun together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What a process says of itself. One that is stuck either does not answer, or is busy and long quiet.

    `progress` counts its beats, `doing` is its longest task ("" if it is idle), `quiet_s` the
    seconds since its last beat while it is busy, 0 if it is idle. `tokens` counts the tokens that its engine has sampled.
    """

    progress: int
    doing: str
    quiet_s: float
    tokens: int = 0


class Heart:
    """Counts what a worker gets done. May be used from any thread; nothing in it waits."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._numbers = count()
        self._busy: dict[int, str] = {}
        self._progress = self._tokens = 0
        self._last = clock()

    def beat(self, times: int = 1) -> None:
        """Count a piece of work as done: a micro-batch, a pass of the engine, an answer of an environment."""
        self._progress += times
        self._last = self._clock()

    def sampled(self, tokens: int) -> None:
        """Count a pass of the engine, and the tokens that it sampled."""
        self.beat()
        self._tokens += tokens

    @contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        """Be busy during the block, which has to beat; its beginning and its end are beats. Blocks may overlap."""
        number = next(self._numbers)
        self.beat()
        self._busy[number] = doing
        try:
            yield
        finally:
            del self._busy[number]
            self.beat()

    def for_each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, with a beat before each."""
        for item in items:
            self.beat()
            yield item

    def pulse(self) -> Pulse:
        """Say how it stands."""
        busy = list(self._busy.values())
        return Pulse(
            progress=self._progress,
            doing=busy[0] if busy else "",
            quiet_s=self._clock() - self._last if busy else 0.0,
            tokens=self._tokens,
        )


def show_stacks_on_signal() -> None:
    """Make `STACKS_SIGNAL` write the stacks of all threads of this process to its standard error, whatever it is doing."""
    faulthandler.register(STACKS_SIGNAL, file=STDERR, all_threads=True)

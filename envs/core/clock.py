"""The clock of an episode, which stops while the episode queues, and the time of the event loop."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SHORTEST_WAIT_S = 0.05


class Clock:
    """The seconds that an episode has left. It starts stopped. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self._lock = threading.Lock()
        self._left = seconds
        self._since: float | None = None
        self._on = False
        self._parts: list[_Part] = []

    @property
    def left_s(self) -> float:
        """Seconds left, negative if more was used."""
        with self._lock:
            return self._left if self._since is None else self._left - (time.monotonic() - self._since)

    @contextmanager
    def keep(self, *, on: bool) -> Iterator[None]:
        """Run or stop the clock during the block, then restore its state."""
        before = self.turn(on=on)
        try:
            yield
        finally:
            self.turn(on=before)

    def turn(self, *, on: bool) -> bool:
        with self._lock:
            before, self._on = self._on, on
            self._apply()
            return before

    @contextmanager
    def part(self) -> Iterator["Clock"]:
        """Yield a stopped clock with the same seconds. Until the last part ends, this clock runs only while a part runs."""
        part = _Part(self)
        with self._lock:
            self._parts.append(part)
            self._apply()
        try:
            yield part
        finally:
            with self._lock:
                self._parts.remove(part)
                self._apply()

    def _apply(self) -> None:
        """Run or stop as set. The caller holds the lock."""
        now = time.monotonic()
        if self._since is not None:
            self._left -= now - self._since
        runs = any(part.on for part in self._parts) if self._parts else self._on
        self._since = now if runs else None


class _Part(Clock):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.on = False

    @property
    def left_s(self) -> float:
        return self._clock.left_s

    def turn(self, *, on: bool) -> bool:
        with self._clock._lock:
            before, self.on = self.on, on
            self._clock._apply()
            return before


CURRENT: ContextVar[Clock | None] = ContextVar("CURRENT", default=None)


@contextmanager
def stop_clock() -> Iterator[None]:
    """Stop the episode's clock during the block, for shared resources with their own deadlines."""
    clock = CURRENT.get()
    if clock is None:
        yield
        return
    with clock.keep(on=False):
        yield


@contextmanager
def call_at_end(clock: Clock, end: Callable[[], None]) -> Iterator[None]:
    """Call `end` on the running event loop if the clock runs out before the block ends."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        left = clock.left_s  # it may have stopped since the last check
        if left <= 0:
            end()
        else:
            timer = loop.call_later(max(left, SHORTEST_WAIT_S), look)

    timer = loop.call_later(max(clock.left_s, 0.0), look)
    try:
        yield
    finally:
        timer.cancel()


def loop_time() -> float:
    """Return the time of the running event loop, or the monotonic clock without one. Both agree for asyncio's own loops."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()

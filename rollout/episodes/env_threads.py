"""Threads for the calls of environments, which may take long, hang, or raise anything."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from envs.core.clock import CURRENT, Clock
from envs.core.errors import EnvironmentFault, EpisodeTimeout
from envs.core.failure import in_words
from rollout.episodes.stopwatch import Stopwatch

T = TypeVar("T")
SHORTEST_WAIT_S = 0.05
UNFIT = (StopIteration, CancelledError)
"""Exceptions that mean something else to whoever awaits a call."""


class EnvThreads:
    """Runs so many calls of one environment at once, each in a thread; the others wait, off their clocks.

    A call that outlasts its episode's clock is left to itself with its thread, and its place is free at once: there is a
    thread for every call that has a place. Threads are used again and do not keep the process from ending. For one event
    loop.
    """

    def __init__(self) -> None:
        self._places: dict[str, asyncio.Semaphore] = {}
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    async def call(self, function: Callable[[], T], *, env: str, at_once: int, clock: Clock, watch: Stopwatch) -> T:
        """Return or raise what the function does, or raise `EpisodeTimeout` where the clock runs out first."""
        async with watch.place(self._places.setdefault(env, asyncio.Semaphore(at_once))):
            with clock.turned(on=True), watch.running("step_s"):
                return await _within(clock, asyncio.wrap_future(self.start(function, clock)))

    def start(self, function: Callable[[], T], clock: Clock | None = None) -> "Future[T]":
        """Run a function in a thread from now on; return what becomes of it."""
        future: Future[T] = Future()
        self._jobs.put(partial(_settle, future, function, clock))
        with self._lock:
            waiting, self._idle = self._idle, max(0, self._idle - 1)
        if not waiting:
            threading.Thread(target=self._work, name="env", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            with self._lock:
                self._idle += 1


async def _within(clock: Clock, running: "asyncio.Future[T]") -> T:
    """Await a call. The clock may stand still meanwhile, so it is looked at again when it would have run out."""
    try:
        while not running.done():
            left = clock.left_s
            if left <= 0:
                raise EpisodeTimeout("the deadline of the episode passed while its environment worked")
            await asyncio.wait([running], timeout=max(left, SHORTEST_WAIT_S))
        return running.result()
    finally:
        running.cancel()


def _settle(future: "Future[T]", function: Callable[[], T], clock: Clock | None) -> None:
    CURRENT.set(clock)
    try:
        result = function()
    except BaseException as error:
        settle = partial(future.set_exception, _passable(error))
    else:
        settle = partial(future.set_result, result)
    with suppress(InvalidStateError):  # nobody waits for it any more
        settle()


def _passable(error: BaseException) -> Exception:
    """Return an exception that can be awaited: what would end the process or the awaiting task is named instead."""
    if isinstance(error, Exception) and not isinstance(error, UNFIT):
        return error
    return EnvironmentFault(in_words(error))

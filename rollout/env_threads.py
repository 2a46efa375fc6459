"""Threads for the calls of environments, which may take long, hang, or raise anything."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TypeVar

from envs.clock import CURRENT, Clock
from envs.errors import EnvironmentFault, EpisodeTimeout
from envs.failure import in_words

T = TypeVar("T")
SHORTEST_WAIT_S = 0.05
UNFIT = (StopIteration, CancelledError)
"""Exceptions that mean something else to whoever awaits a call."""


class EnvThreads:
    """Runs each call in a thread of its own, so many of one environment at once; the others wait, off their clocks.

    A call that outlasts its episode's clock is left to itself, and its place is free at once. For one event loop.
    """

    def __init__(self) -> None:
        self._places: dict[str, asyncio.Semaphore] = {}

    async def call(self, function: Callable[[], T], *, env: str, at_once: int, clock: Clock) -> T:
        """What the function returns or raises. `EpisodeTimeout` where the clock runs out first."""
        async with self._places.setdefault(env, asyncio.Semaphore(at_once)):
            with clock.turned(on=True):
                return await _within(clock, asyncio.wrap_future(started(function, clock)))


async def _within(clock: Clock, running: "asyncio.Future[T]") -> T:
    """The clock may stand still meanwhile, so it is looked at again when it would have run out."""
    try:
        while not running.done():
            left = clock.left_s
            if left <= 0:
                raise EpisodeTimeout("the deadline of the episode passed while its environment worked")
            await asyncio.wait([running], timeout=max(left, SHORTEST_WAIT_S))
        return running.result()
    finally:
        running.cancel()


def started(function: Callable[[], T], clock: Clock | None = None) -> "Future[T]":
    """What becomes of a function that runs in a thread from now on; the thread does not keep the process from ending."""
    future: Future[T] = Future()

    def work() -> None:
        CURRENT.set(clock)
        try:
            result = function()
        except BaseException as error:
            settle = partial(future.set_exception, _passable(error))
        else:
            settle = partial(future.set_result, result)
        with suppress(InvalidStateError):  # nobody waits for it any more
            settle()

    threading.Thread(target=work, name="env", daemon=True).start()
    return future


def _passable(error: BaseException) -> Exception:
    """An exception that can be awaited: what would end the process or the awaiting task is named instead."""
    if isinstance(error, Exception) and not isinstance(error, UNFIT):
        return error
    return EnvironmentFault(in_words(error))

"""Threads for environment calls, which may be slow, hang or raise any exception, and the time accounting of an episode."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

from temper.envs.core.clock import CURRENT, Clock, call_at_end
from temper.envs.core.errors import EnvironmentFault, EpisodeTimeout, describe_error
from temper.rollout.trajectory import NO_TIME, Times

Activity = Literal["queue_s", "generate_s", "step_s"]


class Stopwatch:
    """Adds up an episode's times in laps: one before the first turn, then one per turn."""

    def __init__(self) -> None:
        self._lap = self._earlier = NO_TIME

    @property
    def times(self) -> Times:
        return self._earlier + self._lap

    @contextmanager
    def running(self, activity: Activity) -> Iterator[None]:
        """Count the time of a block as this activity, also after an exception."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._lap += Times(**{activity: time.monotonic() - start})

    @asynccontextmanager
    async def place(self, places: asyncio.Semaphore) -> AsyncIterator[None]:
        """Hold a place within the block. The wait for it counts as queueing."""
        with self.running("queue_s"):
            await places.acquire()
        try:
            yield
        finally:
            places.release()

    def lap(self) -> Times:
        """Return the times of this lap, and begin the next."""
        lap, self._lap = self._lap, NO_TIME
        self._earlier += lap
        return lap


T = TypeVar("T")
Settle = Callable[[asyncio.Future[Any]], None]
UNFIT = (StopIteration, CancelledError)
"""Exceptions with a special meaning in an awaiting task."""


class EnvThreads:
    """Runs a limited number of calls per environment, each in a thread. The others wait, with their clocks stopped.

    A call that outlasts its episode's clock is abandoned with its thread, and its place is free at once. Threads are
    reused, and do not keep the process alive. For one event loop.
    """

    def __init__(self) -> None:
        self._places: dict[str, asyncio.Semaphore] = {}
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._calls: dict[asyncio.Future[Any], tuple[Clock, Callable[[], bool]]] = {}
        """The future of each running call, with the clock of its episode, and whether it waits for the engine."""
        self._lock = threading.Lock()
        self._idle = 0

    @property
    def are_at_work(self) -> bool:
        return any(
            not answer.done() and clock.left_s > 0 and not waits() for answer, (clock, waits) in self._calls.items()
        )

    @property
    def hung_calls(self) -> int:
        return sum(answer.done() for answer in self._calls)

    async def call(
        self,
        function: Callable[[], T],
        *,
        env: str,
        at_once: int,
        clock: Clock,
        watch: Stopwatch,
        waits: Callable[[], bool] = lambda: False,
    ) -> T:
        """Return or raise the function's result, or raise `EpisodeTimeout` if the clock runs out first.

        `waits` returns whether the call waits for the engine: then it is not at work.
        """
        async with watch.place(self._places.setdefault(env, asyncio.Semaphore(at_once))):
            with clock.keep(on=True), watch.running("step_s"):
                loop = asyncio.get_running_loop()
                answer: asyncio.Future[T] = loop.create_future()
                self._begin(partial(_work, function, clock, partial(self._hand_over, loop, answer)))
                self._calls[answer] = clock, waits
                with call_at_end(clock, partial(_time_out, answer)):
                    return await answer

    def start(self, function: Callable[[], object]) -> None:
        """Run a function in a thread, if a thread can be started. Do not wait for it."""
        with suppress(RuntimeError):
            self._begin(partial(_work, function, None, lambda settle: None))

    def _begin(self, job: Callable[[], None]) -> None:
        """Give a job to an idle thread, or to a new one. Raises `RuntimeError` if none can be started."""
        with self._lock:
            waiting, self._idle = self._idle, max(0, self._idle - 1)
        if waiting:
            self._jobs.put(job)
        else:
            threading.Thread(target=self._run, args=(job,), name="env", daemon=True).start()

    def _run(self, job: Callable[[], None]) -> None:
        while True:
            job()
            with self._lock:
                self._idle += 1
            job = self._jobs.get()

    def _hand_over(self, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], settle: Settle) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._settle, answer, settle)

    def _settle(self, answer: asyncio.Future[Any], settle: Settle) -> None:
        self._calls.pop(answer, None)
        if not answer.done():  # else the call was abandoned
            settle(answer)


def _work(function: Callable[[], T], clock: Clock | None, hand_over: Callable[[Settle], None]) -> None:
    """Call the function in a thread, and hand over a function that settles the call's future."""
    CURRENT.set(clock)
    try:
        result = function()
    except BaseException as error:
        passable = _to_awaitable_error(error)
        hand_over(lambda answer: answer.set_exception(passable))
    else:
        hand_over(lambda answer: answer.set_result(result))


def _time_out(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(EpisodeTimeout("the deadline of the episode passed while its environment worked"))


def _to_awaitable_error(error: BaseException) -> Exception:
    """Return an exception that can be awaited. Others would end the process or the awaiting task, so they become an
    `EnvironmentFault`.
    """
    if isinstance(error, Exception) and not isinstance(error, UNFIT):
        return error
    return EnvironmentFault(describe_error(error))

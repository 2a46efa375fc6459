"""An event loop with virtual time: if nothing is ready, it jumps to the next timer.

Coroutines that use the loop's time run unchanged, hours in seconds. A call in a thread runs at once in the loop's thread and
takes no time, so the order of events is reproducible.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")


class NoEventsLeft(RuntimeError):
    """Every task waits for another one, and no timer is set. Real processes would wait forever."""


class _Jumping(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NoEventsLeft("every task waits for another one, and no timer is set")
        self.now += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that begins at second 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time. Raise `NoEventsLeft` if it would wait for ever."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)

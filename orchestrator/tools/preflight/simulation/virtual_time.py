"""An event loop whose time is virtual: where nothing is left to do now, it jumps to the next timer.

Whatever asks the loop for the time, waits by it or has a deadline by it runs as it is, hours in seconds. What would run in a
thread runs at once, in the loop's own thread, and takes no time: so the same coroutines do the same things in the same order.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")


class NothingLeft(RuntimeError):
    """Every task waits for another one, and no timer is set: real processes would wait for ever."""


class _Jumping(selectors.SelectSelector):
    """Waits for nothing: has the clock jump over the time that a selector would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Jump `timeout` seconds ahead. Raise `NothingLeft` for a wait without an end."""
        if timeout is None:
            raise NothingLeft("every task waits for another one, and no timer is set")
        self.now += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Begins at second 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual seconds."""
        return self._jumping.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        """Call a function at once; return its result or what it raised as a future that is done."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time. Raise what it raises, and `NothingLeft` where it would wait for ever."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)

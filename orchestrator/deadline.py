"""No wait without a deadline: waits that end with an error naming who waited for what, or because the run is to stop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class StuckError(RuntimeError):
    """A wait passed its deadline. The message names the stage and what it was waiting for."""


class StopRequested(Exception):
    """Somebody asked the run to stop (Ctrl-C, SIGTERM, a stopped job). It continues with the same command."""


async def within(seconds: float, awaitable: Awaitable[T], *, stage: str, waiting_for: Callable[[], str]) -> T:
    """The awaitable's result, or `StuckError` after `seconds`.

    A `TimeoutError` of the awaitable's own passes through unchanged.
    """
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            return await awaitable
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise StuckError(
            f"{stage}: nothing for {seconds:.0f} s while waiting for {waiting_for()}; "
            f"the run can be continued with the same command"
        ) from error


class StopFlag:
    """Set by a signal, looked at between steps and inside long waits."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Ask the run to stop at the next safe point."""
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raises `StopRequested` where somebody asked for it."""
        if self._event.is_set():
            raise StopRequested

    async def wait_or(self, awaitable: Awaitable[T]) -> T:
        """The awaitable's result; raises `StopRequested`, and cancels it, where the flag is set first."""
        work = asyncio.ensure_future(awaitable)
        flag = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({work, flag}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise StopRequested
            return work.result()
        finally:
            for future in (work, flag):
                if not future.done():
                    future.cancel()

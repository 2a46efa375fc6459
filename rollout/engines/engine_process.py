"""The process of an engine as its front end sees it: waits for it end where it does."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import psutil

from temper.envs.core.process import WorkerDied

T = TypeVar("T")
LOOK_S = 0.5
"""Seconds between two looks at whether the process lives."""


class EngineProcess:
    """Tells the death of an engine's process, which leaves calls that were forwarded to it waiting for ever, and its work."""

    def __init__(self, is_dead: Callable[[], bool], *, raised: type[Exception]) -> None:
        """`is_dead` looks whether it lives; `raised` is what the front end says of one that is dead, where it says anything."""
        self._is_dead = is_dead
        self._raised = raised
        self.loading: list[int] = []
        """The numbers of the processes that load weights, once they are known."""

    async def died(self) -> None:
        """Wait for as long as it lives, then raise `WorkerDied`."""
        while not self._is_dead():
            await asyncio.sleep(LOOK_S)
        raise WorkerDied("the engine's process died")

    async def answer(self, call: Coroutine[Any, Any, T]) -> T:
        """Return what a call to the engine does. Raise `WorkerDied` where its process dies before."""
        work, death = asyncio.ensure_future(call), asyncio.ensure_future(self.died())
        try:
            await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await death
            return await work
        except self._raised as error:
            raise WorkerDied("the engine's process died") from error
        finally:
            work.cancel()
            death.cancel()

    async def wait_for_progress(self, call: Coroutine[Any, Any, object]) -> None:
        """Wait until a call to the engine has been answered, or the processes that load weights have used a CPU meanwhile.

        Raise `WorkerDied` where it dies before.
        """
        work, used = asyncio.ensure_future(self.answer(call)), cpu_s(self.loading)
        try:
            while not work.done() and cpu_s(self.loading) == used:
                await asyncio.wait({work}, timeout=LOOK_S)
            if work.done():
                work.result()
        finally:
            work.cancel()


def cpu_s(pids: Iterable[int]) -> float:
    used = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            used += times.user + times.system
    return used

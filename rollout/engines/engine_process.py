"""Detects the end of an engine's process. Its front end alone would wait forever."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import psutil

from temper.envs.core.process import WorkerDied

T = TypeVar("T")
LOOK_S = 0.5
"""Seconds between two checks of the process."""


class EngineProcess:
    """Watches an engine's process, and its work."""

    def __init__(self, is_dead: Callable[[], bool], *, raised: type[Exception]) -> None:
        """`is_dead` checks the process. `raised` is the front end's error for a dead one."""
        self._is_dead = is_dead
        self._raised = raised
        self.loading: list[int] = []
        """Process ids of the processes that load weights, once known."""

    async def wait_until_dead(self) -> None:
        """Wait until the process ends, then raise `WorkerDied`."""
        while not self._is_dead():
            await asyncio.sleep(LOOK_S)
        raise WorkerDied("the engine's process died")

    async def answer(self, call: Coroutine[Any, Any, T]) -> T:
        """Return the result of a call to the engine. Raise `WorkerDied` if its process dies first."""
        work, failure = asyncio.ensure_future(call), asyncio.ensure_future(self.wait_until_dead())
        try:
            await asyncio.wait({work, failure}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await failure
            return await work
        except self._raised as error:
            raise WorkerDied("the engine's process died") from error
        finally:
            work.cancel()
            failure.cancel()

    async def wait_for_progress(self, call: Coroutine[Any, Any, object]) -> None:
        """Wait until the call ends, or until the loading processes use CPU time.

        Raise `WorkerDied` if the process dies first.
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

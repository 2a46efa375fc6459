"""What the seconds of an episode went into."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Literal

from temper.rollout.trajectory import NO_TIME, Times

Activity = Literal["queue_s", "generate_s", "step_s"]


class Stopwatch:
    """Adds up an episode's times, lap by lap: one before the first turn, then one a turn."""

    def __init__(self) -> None:
        self._lap = self._earlier = NO_TIME

    @property
    def times(self) -> Times:
        """Those of the episode so far."""
        return self._earlier + self._lap

    @contextmanager
    def running(self, activity: Activity) -> Iterator[None]:
        """Count the time of a block as this activity, whatever ends it."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._lap += Times(**{activity: time.monotonic() - start})

    @asynccontextmanager
    async def place(self, places: asyncio.Semaphore) -> AsyncIterator[None]:
        """Hold one of the places; the wait for it is queueing."""
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

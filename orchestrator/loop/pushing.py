"""A push that the engines load while the learner may be at its next step, and the faults of it that are raised later."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from temper.envs.core.clock import loop_time
from temper.envs.core.member import LearnerDied


class PushInFlight:
    """The engines at work on a push."""

    def __init__(self) -> None:
        self.loading: asyncio.Task[float] | None = None
        """Ends with the seconds that the engines took; None if they load nothing."""
        self.load_s = 0.0
        """The seconds of the last push that they had loaded."""
        self._loaded_at = 0.0

    def begin(self, load: Coroutine[Any, Any, float]) -> None:
        self.loading = asyncio.create_task(load)

    async def loaded(self) -> None:
        """Wait until the engines have loaded the last push; raise its fault."""
        if self.loading is not None:
            loading, self.loading = self.loading, None
            self.load_s, self._loaded_at = await loading, loop_time()

    def last_sign(self) -> float:
        """Return when the engines loaded last, on the monotonic clock: now while they do, as that has its own deadline."""
        return loop_time() if self.loading is not None else self._loaded_at

    async def give_up(self) -> None:
        """Wait until the engines are at rest, and raise nothing. The wait ends: a load has a deadline."""
        if self.loading is not None:
            await asyncio.wait({self.loading})
            retrieve_fault(self.loading)


class LaterFault:
    """Keeps the first fault of a push: the step that it is part of is trained, and reported first."""

    def __init__(self) -> None:
        self._fault: Exception | None = None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep a fault of the block, but for the learner's death: what it learnt is lost then."""
        try:
            yield
        except LearnerDied:
            raise
        except Exception as error:
            self._fault = self._fault or error

    def raise_kept(self) -> None:
        if self._fault is not None:
            raise self._fault


def retrieve_fault(task: asyncio.Task[Any]) -> None:
    """Retrieve the fault of a task that nobody waits for any more: asyncio would log it as never retrieved."""
    if task.done() and not task.cancelled():
        task.exception()


def first_error(error: BaseException) -> BaseException:
    """Return the first plain error inside nested groups; an error alone is that itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

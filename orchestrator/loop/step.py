"""One step: its timed parts, its report, and a push that the engines load during the next step."""

import asyncio
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from temper.envs.core.clock import loop_time
from temper.envs.core.process import LearnerDied
from temper.orchestrator.loop.buffer import Dropped, Occupancy
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.trajectory import Group, WeightVersion


class StepPart(Enum):
    """The parts of a step, in order.

    Groups are generated during all of them, with `max_lag` 0 only in `WAIT`, `LOG` and `SAVE`, and on colocated devices only
    in `WAIT`.
    """

    WAIT = "wait"  # for groups
    BATCH = "batch"  # advantages, packing: from trajectories to arrays
    LEARN = "learn"  # the learner's updates
    PUBLISH = "publish"  # the learner prepares its weights for the engines
    EVAL = "eval"  # wait for an evaluation of the weights that the engines still serve
    LOAD = "load"  # the engines load the weights
    LOG = "log"  # metrics and the progress panel
    SAVE = "save"  # copies for records and checkpoint, which are written later
    PHASE = "phase"  # phase changes of colocated devices, before `WAIT`, `BATCH` and `PUBLISH`


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of a step by part, from the previous report to its own.

    A step is reported before it is logged and saved, so `LOG` and `SAVE` belong to the previous step.
    """

    seconds: dict[StepPart, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def metrics(self) -> dict[str, float]:
        """Return `time/step_s` and the seconds of each part."""
        return {"time/step_s": self.total} | {f"time/{part.value}_s": spent for part, spent in self.seconds.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Counts and seconds of one step.

    The learner had `version` when it took the groups. `left_over` other groups continue into a later step. `pushed_bytes` are
    the bytes of the push and `pushed_share` their share of the whole weights, both 0 without a push. `load_s` are the seconds
    of the last completed load.
    """

    step: int
    groups: list[Group]
    dropped: Dropped
    learner: dict[str, float]
    version: WeightVersion
    left_over: int
    pushed_bytes: int
    pushed_share: float
    load_s: float
    times: StepTimes
    occupancy: Occupancy
    engine: EngineStats


class StepClock:
    """Times the parts of the steps."""

    def __init__(self, parts: Sequence[StepPart] = tuple(StepPart)) -> None:
        """`parts` are all parts that a step has. The clock begins in the first."""
        self._parts = parts
        self._seconds = dict.fromkeys(parts, 0.0)
        self._part = parts[0]
        self._entered = loop_time()

    def enter(self, part: StepPart) -> None:
        """End the current part and begin this one."""
        now = loop_time()
        self._seconds[self._part] += now - self._entered
        self._part, self._entered = part, now

    async def during(self, part: StepPart, awaitable: Awaitable[None]) -> None:
        """Await something as a separate part."""
        self.enter(part)
        await awaitable

    def report(self) -> StepTimes:
        """Return the times since the last report, and begin `LOG`."""
        self.enter(StepPart.LOG)
        times = StepTimes(seconds=self._seconds)
        self._seconds = dict.fromkeys(self._parts, 0.0)
        return times


class PushInFlight:
    """A push that the engines load."""

    def __init__(self) -> None:
        self.loading: asyncio.Task[float] | None = None
        """Returns the seconds of the load; None if nothing loads."""
        self.load_s = 0.0
        self._loaded_at = 0.0

    def begin(self, load: Coroutine[Any, Any, float]) -> None:
        self.loading = asyncio.create_task(load)

    async def wait_loaded(self) -> None:
        """Wait for the last push to be loaded. Raise its error."""
        if self.loading is not None:
            loading, self.loading = self.loading, None
            self.load_s, self._loaded_at = await loading, loop_time()

    def last_progress(self) -> float:
        """Return the time of the last load on the monotonic clock. During a load it is now, since a load has its own
        deadline.
        """
        return loop_time() if self.loading is not None else self._loaded_at

    async def cancel(self) -> None:
        """Wait until the engines are idle and raise nothing. A load has a deadline, so the wait ends."""
        if self.loading is not None:
            await asyncio.wait({self.loading})
            retrieve_fault(self.loading)


class LaterFault:
    """Holds the first error of a push until its step, which is trained, has been reported."""

    def __init__(self) -> None:
        self._fault: Exception | None = None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Hold an error of the block, except `LearnerDied`: the trained state is lost then."""
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
    """Retrieve the error of a task without a waiter, so that asyncio does not log it."""
    if task.done() and not task.cancelled():
        task.exception()


def first_error(error: BaseException) -> BaseException:
    """Return the first plain error inside nested groups, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

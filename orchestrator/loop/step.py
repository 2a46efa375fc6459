"""The parts of a step: its parts, which add up to it, its report, and a push that the engines load beside the next step."""

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
    """What the loop does, in this order. Groups are generated beside it: always, or in `WAIT`, `LOG` and `SAVE` where `max_lag`
    is 0, or in `WAIT` alone where the engines share their devices with the learner.
    """

    WAIT = "wait"  # for groups
    BATCH = "batch"  # advantages, packing: from trajectories to arrays
    LEARN = "learn"  # the learner's updates
    PUBLISH = "publish"  # the learner lays its weights out for the engines
    EVAL = "eval"  # for an evaluation of the weights that the engines still serve
    LOAD = "load"  # the engines take them
    LOG = "log"  # metrics, the panel
    SAVE = "save"  # a checkpoint, then trajectories
    PHASE = "phase"  # engines and learner give the devices that they share to each other, before `WAIT`, `BATCH` and `PUBLISH`


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The seconds of a step by part, from the report of the step before to its own.

    A step is reported before it is logged and saved, so `LOG` and `SAVE` are those of the step before.
    """

    seconds: dict[StepPart, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def metrics(self) -> dict[str, float]:
        """Return `time/step_s` and, for each part, its part of it."""
        return {"time/step_s": self.total} | {f"time/{part.value}_s": spent for part, spent in self.seconds.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The counts and the seconds of one step.

    The learner had `version` when it took the groups. `left_over` other groups were in flight then and continue into a later
    step. `pushed_bytes` are the bytes of a push, `pushed_share` their share of the whole weights. Both are 0 without a push.
    `load_s` are the seconds in which the engines loaded a push, the last one that they had loaded by then.
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
    """Times the parts of one step after another."""

    def __init__(self, parts: Sequence[StepPart] = tuple(StepPart)) -> None:
        """Begin in the first of these parts, which are all that a step has."""
        self._parts = parts
        self._seconds = dict.fromkeys(parts, 0.0)
        self._part = parts[0]
        self._entered = loop_time()

    def enter(self, part: StepPart) -> None:
        """Begin a part, which ends the one before."""
        now = loop_time()
        self._seconds[self._part] += now - self._entered
        self._part, self._entered = part, now

    async def during(self, part: StepPart, awaitable: Awaitable[None]) -> None:
        """Wait for something in a part of its own."""
        self.enter(part)
        await awaitable

    def report(self) -> StepTimes:
        """Return the times since the last report, and begin the part `LOG`."""
        self.enter(StepPart.LOG)
        times = StepTimes(seconds=self._seconds)
        self._seconds = dict.fromkeys(self._parts, 0.0)
        return times


class PushInFlight:
    """The engines at work on a push."""

    def __init__(self) -> None:
        self.loading: asyncio.Task[float] | None = None
        """Ends with the seconds that the engines took; None if they load nothing."""
        self.load_s = 0.0
        self._loaded_at = 0.0

    def begin(self, load: Coroutine[Any, Any, float]) -> None:
        self.loading = asyncio.create_task(load)

    async def loaded(self) -> None:
        """Wait until the engines have loaded the last push; raise its fault."""
        if self.loading is not None:
            loading, self.loading = self.loading, None
            self.load_s, self._loaded_at = await loading, loop_time()

    def last_progress(self) -> float:
        """Return when the engines loaded last, on the monotonic clock: now while they do, as that has its own deadline."""
        return loop_time() if self.loading is not None else self._loaded_at

    async def cancel(self) -> None:
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

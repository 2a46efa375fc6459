"""The training loop of the stages in which the model samples: `rl` and `distill`. Read this file first.

    mixture --draw--> buffer.admit --ticket--> rollouts.run_group: N episodes of one task, at once
                          ^                          |      env <-text-> renderer <-tokens-> engine
       a slot is free     |                          v
                          |                     buffer.put        groups without signal are dropped and replaced
                          |                          |
                          |                     buffer.take(n)    waits for n groups, and for any that is due
                          |                          v
                          |             advantages -> mini-batches -> learner.step
                          |                          v
                          |                  learner.publish --> on_step: metrics --> save: a checkpoint, then trajectories
                          |                          v
                          +-- buffer.release <- rollouts.load_weights --> evaluations.begin: held-out tasks, on the same engines

Who waits for whom: `produce` waits for a free slot, `learn` waits for finished groups, a push waits for the load of the one
before it, and for the evaluation of the weights that it replaces, where there is one; nothing else waits. Capacity is
`(max_lag + 1) * groups_per_step` slots, or fewer with `over_sampling`, each held until the engines serve the weights it
trained. With `max_lag = 0` the two alternate, which is synchronous training; with 1 or more, generation goes on while the
learner works and while weights are swapped under the running requests: a group that is not ready is left to a later step, as
long as it is not due. The learner goes on to the next step while the engines load a push that lasts (`Push.lasts`); for any
other, and with `max_lag = 0`, it waits.
Where the two share their devices they work in shifts (`orchestrator/loop/interfaces.py`), which `max_lag = 0` alone allows.

No fault of the sampling side costs what was learnt: one of `produce` is seen at the next wait for groups, one of a push there
or after the step was reported that is learnt meanwhile, and `on_fault` saves before the groups in flight are given up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from temper.envs.core.clock import loop_time
from temper.envs.core.pulse import LearnerDied
from temper.learner.batches.micro_batches import TrainBatch
from temper.orchestrator.loop.buffer import Buffer, Dropped, Occupancy, VersionCell
from temper.orchestrator.loop.deadline import Deadline, StopFlag, in_thread, within
from temper.orchestrator.loop.interfaces import LEARNING, PUSHING, SAMPLING, Evaluations, Learner, Rollouts, Shifts
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.step_times import Phase, StepClock, StepTimes
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import BegunGroup
from temper.rollout.trajectory import Group, Ticket, WeightVersion
from temper.rollout.weights.delivery import Push

T = TypeVar("T")
END_S = 30.0
"""How long the end of the loop waits for the groups in flight, whose sampling is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one step did, and where its time went.

    `version` was the learner's when it took the groups, and `left_over` others were in flight then, which go on into a later
    step. `pushed_bytes` is what a push carried, `pushed_share` that as a share of the whole weights; both are 0 where none was
    made. `load_s` are the seconds in which the engines loaded a push, the last one that they had loaded by then.
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


@dataclass(kw_only=True)
class Loop:
    """Everything that a step needs. `stage` names the loop in messages, `limit` is the deadline of each wait, `push_limit`
    that of the engines to load so many bytes.

    A step makes an update from each of `make_batches`, which covers all `epochs`.

    `on_group` watches a finished group and returns it with the rewards that depend on the whole group; `on_step` writes
    metrics, and `save` a checkpoint after the steps that have one: the buffer's state is whole when they run. `on_fault`
    learns what ends the loop, a stop or a fault, while the groups in flight are still there.
    """

    stage: str
    rollouts: Rollouts
    learner: Learner
    mixture: Mixture
    buffer: Buffer
    version: VersionCell
    group_size: int
    make_batches: Callable[[list[Group]], list[TrainBatch]]
    on_group: Callable[[Group], Group]
    on_step: Callable[[StepReport], Awaitable[None]]
    save: Callable[[int], Awaitable[None]]
    on_fault: Callable[[Exception], Awaitable[None]]
    stop: StopFlag
    limit: Deadline
    push_limit: Callable[[int], Deadline]
    epochs: int = 1
    evaluations: Evaluations = field(default_factory=Evaluations)
    shifts: Shifts = field(default_factory=Shifts)
    begun: Callable[[Ticket], BegunGroup | None] = lambda _: None
    """Gives what there is of a ticket's group from before; None where it begins anew."""
    healed: Callable[[], float] = lambda: 0.0
    """When a rollout worker died or was replaced last, on the monotonic clock. See `within`."""
    learning: int = 0
    """The step that the learner began last. Until that is reported, the learner's state is of no use to a checkpoint."""

    _loading: asyncio.Task[float] | None = field(init=False, default=None)
    """The engines at work on a push."""
    _load_s: float = field(init=False, default=0.0)
    _loaded_at: float = field(init=False, default=0.0)

    async def run(self, first: int, last: int) -> None:
        """Run steps `first` to `last`, both included. Raises `StopRequested`, `StuckError` or what a worker raised."""
        self.learning = first - 1
        await self._engine_stats(first)  # what the engines did for others is no step's
        self.evaluations.begin(first - 1, self.version.value)
        producer = asyncio.create_task(self._produce())
        try:
            await self._steps(first, last, producer)
            producer.cancel()  # the engines are left to the last evaluation
            await self.shifts.begin(SAMPLING)
            await self._evaluated(last, self.evaluations.finished())
        except Exception as fault:
            await self.on_fault(fault)
            raise
        finally:
            producer.cancel()
            if self._loading is not None:
                await asyncio.wait({self._loading})  # which has a deadline: whoever comes next finds engines at rest
                _told(self._loading)
            await self.evaluations.give_up()
            await asyncio.wait({producer}, timeout=END_S)
            _told(producer)

    async def _produce(self) -> None:
        async with asyncio.TaskGroup() as groups:
            while True:
                ticket = await self.buffer.admit(self.mixture, self.version)
                await self.evaluations.free()
                groups.create_task(self._one_group(ticket))

    async def _one_group(self, ticket: Ticket) -> None:
        group = await self.rollouts.run_group(ticket, self.group_size, self.begun(ticket))
        await self.buffer.put(self.on_group(group))

    async def _steps(self, first: int, last: int, producer: asyncio.Task[None]) -> None:
        clock = StepClock()
        for step in range(first, last + 1):
            self.stop.check()
            later = _Later()
            await self.on_step(await self._learn(step, clock, producer, later))
            if later.fault is not None:
                raise later.fault
            clock.enter(Phase.SAVE)
            await self.save(step)
        await self._loaded()

    async def _learn(self, step: int, clock: StepClock, producer: asyncio.Task[None], later: "_Later") -> StepReport:
        await clock.during(Phase.SHIFT, self.shifts.begin(SAMPLING))
        await clock.during(Phase.EVAL, self._evaluated(step, self.evaluations.free()))  # groups may be there already
        clock.enter(Phase.WAIT)
        groups = await self._sampled(step, self._take(producer), waiting_for=self.buffer.waiting_for)
        version, left_over = self.version.learnt, len(self.buffer.unfinished)
        await clock.during(Phase.SHIFT, self.shifts.begin(LEARNING))
        clock.enter(Phase.BATCH)
        batches = await self._within(step, "the batches to be built", in_thread(self.make_batches, groups))
        clock.enter(Phase.LEARN)
        self.learning = step
        metrics = await self._within(step, "the learner's step", self.learner.step(*batches, epochs=self.epochs))
        dropped = await self.buffer.trained(step)
        self.version.learnt = WeightVersion(step=version.step + 1)
        push: Push | None = None
        with later.keeping():
            push = await self._push(step, clock)
        occupancy, times, stats = self.buffer.occupancy(), clock.report(), EngineStats()
        with later.keeping():
            stats = stats if push is None else await self._engine_stats(step)
        return StepReport(
            step=step,
            groups=groups,
            dropped=dropped,
            learner=metrics,
            version=version,
            left_over=left_over,
            pushed_bytes=0 if push is None else push.manifest.sent_bytes,
            pushed_share=0.0 if push is None else push.manifest.sent_bytes / push.manifest.whole_bytes,
            load_s=self._load_s,
            times=times,
            occupancy=occupancy,
            engine=stats,
        )

    async def _push(self, step: int, clock: StepClock) -> Push:
        """Publish the learner's weights, and have the engines begin to load them, after those of the push before."""
        clock.enter(Phase.LOAD)
        await self._loaded()
        await clock.during(Phase.SHIFT, self.shifts.begin(PUSHING))
        clock.enter(Phase.PUBLISH)
        push = await self._within(step, "the learner's weights", self.learner.publish(self.version.learnt))
        clock.enter(Phase.EVAL)
        await self._evaluated(step, self.evaluations.finished())
        clock.enter(Phase.LOAD)
        limit, beside = self.push_limit(push.manifest.whole_bytes), self.buffer.max_lag > 0 and push.lasts
        if beside:  # a rank that is asked for a push once more may be at the next step, and answers after it
            limit = replace(limit, seconds=limit.seconds + self.limit.seconds)
        self._loading = asyncio.create_task(self._load(step, push, limit))
        if not beside:
            await self._loaded()
        return push

    async def _load(self, step: int, push: Push, limit: Deadline) -> float:
        """Let the engines load a push, and free the slots of its step; return how many seconds they took."""
        began = loop_time()
        loading = self.rollouts.load_weights(push)
        self.version.value = await self._within(step, "the engines to load weights", loading, limit=limit)
        seconds = loop_time() - began
        self.evaluations.begin(step, self.version.value)
        await self.buffer.release(step)
        return seconds

    async def _loaded(self) -> None:
        """Wait until the engines have loaded the last push; raise what that failed with."""
        if self._loading is not None:
            loading, self._loading = self._loading, None
            self._load_s, self._loaded_at = await loading, loop_time()

    async def _evaluated(self, step: int, evaluated: Awaitable[None]) -> None:
        """Wait for the evaluation that is under way: the weights that are served stay until it has ended."""
        await self._sampled(step, evaluated, waiting_for=lambda: "the evaluation of the weights before it")

    async def _sampled(self, step: int, answers: Awaitable[T], *, waiting_for: Callable[[], str]) -> T:
        """Wait for answers of the workers, or for the stop of the run."""
        waiting, stage, sign = self.stop.wait_or(answers), f"{self.stage} step {step}", self._last_sign
        return await within(
            self.limit, waiting, stage=stage, waiting_for=waiting_for, last_sign=sign, healed=self.healed
        )

    def _last_sign(self) -> float:
        load = loop_time() if self._loading is not None else self._loaded_at  # which has a deadline of its own
        return max(self.buffer.last_sign(), self.evaluations.last_sign(), load)

    async def _take(self, producer: asyncio.Task[None]) -> list[Group]:
        """Wait for the groups of a step. Raise what ended the producer where they will never come."""
        taking = asyncio.create_task(self.buffer.take(self.version.learnt))
        waits: set[asyncio.Task[Any]] = {taking, producer} | ({self._loading} if self._loading is not None else set())
        try:
            while not taking.done():
                done, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if not taking.done() and producer in done and (fault := producer.exception()) is not None:
                    raise _first_error(fault)
                if not taking.done() and self._loading in done:
                    await self._loaded()
            return await taking
        finally:
            taking.cancel()

    async def _engine_stats(self, step: int) -> EngineStats:
        return await self._within(step, "the engines' statistics", self.rollouts.engine_stats())

    async def _within(self, step: int, name: str, awaitable: Awaitable[T], *, limit: Deadline | None = None) -> T:
        return await within(limit or self.limit, awaitable, stage=f"{self.stage} step {step}", waiting_for=lambda: name)


class _Later:
    """Keeps the first fault of a push: the step that it is part of is trained, and reported first."""

    def __init__(self) -> None:
        self.fault: Exception | None = None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep a fault of the block, but for the learner's death: what it learnt is lost then."""
        try:
            yield
        except LearnerDied:
            raise
        except Exception as error:
            self.fault = self.fault or error


def _told(task: asyncio.Task[Any]) -> None:
    """Count the fault of a task that nobody waits for any more as told: asyncio would tell it as forgotten."""
    if task.done() and not task.cancelled():
        task.exception()


def _first_error(error: BaseException) -> BaseException:
    """Return the first plain error inside nested groups; an error alone is that itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

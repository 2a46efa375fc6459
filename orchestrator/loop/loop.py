"""The training loop of the stages in which the model samples: `rl` and `distill`. Read this file first.

    mixture --draw--> buffer.admit --ticket--> rollouts.run_group: N episodes of one task, at once
                          ^                          |      env <-text-> renderer <-tokens-> engine
       a slot is free     |                          v
                          |                     buffer.put        groups with zero advantage are replaced
                          |                          |
                          |                     buffer.take(n)    waits for n groups, and for any group that is due
                          |                          v
                          |             advantages -> mini-batches -> learner.step
                          |                          v
                          |                  learner.publish --> on_step: metrics --> save: copies for records and checkpoint
                          |                          v
                          +-- buffer.release <- rollouts.load_weights --> evaluations.begin: held-out tasks, on the same engines

Who waits for whom: `produce` waits for a free slot, and `learn` for finished groups. A push waits for the load of the push
before it, because the engines load one at a time, and for a running evaluation, because that must end under its own weights.
A save waits for the records of the step before and for the checkpoint before, because both are written during the loop. Nothing
else waits.

There are `(max_lag + 1) * groups_per_step` slots, or fewer with `over_sampling`. Each is held until the engines serve the
weights that its group trained. `max_lag = 0` is synchronous training: sampling and learning alternate. With 1 or more,
sampling continues while the learner works, and running requests continue on the new weights after a push. A step leaves
unfinished groups to later steps until they are due. If the push does not block (`Push.non_blocking`) and `max_lag` is above
0, a step begins while the engines still load it. Colocated engines and learner work in phases
(`orchestrator/loop/interfaces.py`), which need `max_lag = 0`.

An error on the sampling side loses no update, because `on_fault` saves before the groups in flight end. The next wait for
groups raises an error of `produce`. An error of a push is raised there too, or after the next report.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import Any

from temper.envs.core.clock import loop_time
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.deadline import Deadline, Waits
from temper.orchestrator.loop.interfaces import (
    LEARNING,
    PUSHING,
    SAMPLING,
    DevicePhases,
    Evaluations,
    Hooks,
    Learner,
    Rollouts,
)
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.step import (
    LaterFault,
    PushInFlight,
    StepClock,
    StepPart,
    StepReport,
    first_error,
    retrieve_fault,
)
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.stored_turns import GroupsLost
from temper.rollout.trajectory import Group, Ticket, WeightVersion
from temper.rollout.weights.delivery import Push

END_S = 30.0
"""Seconds that the end of the loop waits for the cancelled groups in flight."""


@dataclass(kw_only=True)
class Loop:
    """The state of the loop. A step makes one update from each batch of `hooks.build_batches`. They cover all `epochs`."""

    rollouts: Rollouts
    learner: Learner
    mixture: Mixture
    buffer: Buffer
    version: VersionCell
    group_size: int
    hooks: Hooks
    waits: Waits
    epochs: int = 1
    evaluations: Evaluations = field(default_factory=Evaluations)
    device_phases: DevicePhases = field(default_factory=DevicePhases)
    learning: int = 0
    """The step that the learner began last. Until its report, the learner's state cannot be saved."""
    _push: PushInFlight = field(init=False, default_factory=PushInFlight)

    async def run(self, first: int, last: int) -> None:
        """Run steps `first` to `last`, both included. Raise `StopRequested`, `StuckError` or the error of a worker."""
        self.learning = first - 1
        await self._engine_stats(first)  # discard the counts before this stage
        self.evaluations.begin(first - 1, self.version.value)
        producer = asyncio.create_task(self._produce())
        try:
            await self._steps(first, last, producer)
            producer.cancel()  # only the last evaluation still uses the engines
            await self.device_phases.begin(SAMPLING)
            await self._evaluated(last, self.evaluations.wait_finished())
        except Exception as fault:
            await self.hooks.on_fault(fault)
            raise
        finally:
            producer.cancel()
            await self._push.cancel()
            await self.evaluations.cancel()
            await asyncio.wait({producer}, timeout=END_S)
            retrieve_fault(producer)

    async def _produce(self) -> None:
        async with asyncio.TaskGroup() as groups:
            while True:
                ticket = await self.buffer.admit(self.mixture, self.version)
                await self.evaluations.wait_until_free()
                groups.create_task(self._one_group(ticket))

    async def _one_group(self, ticket: Ticket) -> None:
        group = await self.rollouts.run_group(ticket, self.group_size, self.hooks.take_partial(ticket))
        await self.buffer.put(self.hooks.on_group(group))

    async def _steps(self, first: int, last: int, producer: asyncio.Task[None]) -> None:
        clock = StepClock()
        for step in range(first, last + 1):
            self.waits.stop.check()
            later = LaterFault()
            await self.hooks.on_step(await self._step(step, clock, producer, later))
            later.raise_kept()
            clock.enter(StepPart.SAVE)
            await self.hooks.save(step)
        await self._push.wait_loaded()

    async def _step(self, step: int, clock: StepClock, producer: asyncio.Task[None], later: LaterFault) -> StepReport:
        groups = await self._built_groups(step, clock, producer)
        version, left_over = self.version.learnt, len(self.buffer.unfinished)
        metrics = await self._learn(step, clock)
        dropped = await self.buffer.record_trained(step)
        self.version.learnt = WeightVersion(step=version.step + 1)
        push: Push | None = None
        with later.keeping():
            push = await self._publish(step, clock)
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
            pushed_share=0.0 if push is None else push.manifest.sent_bytes / push.manifest.bytes_with_base,
            load_s=self._push.load_s,
            times=times,
            occupancy=occupancy,
            engine=stats,
        )

    async def _groups(self, step: int, clock: StepClock, producer: asyncio.Task[None]) -> list[Group]:
        await clock.during(StepPart.PHASE, self.device_phases.begin(SAMPLING))
        # Groups may be ready already.
        await clock.during(StepPart.EVAL, self._evaluated(step, self.evaluations.wait_until_free()))
        clock.enter(StepPart.WAIT)
        taking, waiting_for = self._take(producer), self.buffer.waiting_for
        return await self.waits.wait_for_groups(
            step, taking, waiting_for=waiting_for, last_progress=self._last_progress
        )

    async def _built_groups(self, step: int, clock: StepClock, producer: asyncio.Task[None]) -> list[Group]:
        """Return the groups of a step once the learner built their batches. Groups with lost turns are sampled again."""
        while True:
            groups = await self._groups(step, clock, producer)
            await clock.during(StepPart.PHASE, self.device_phases.begin(LEARNING))
            clock.enter(StepPart.BATCH)
            try:
                await self.waits.within(step, "the batches to be built", self.hooks.build_batches(groups))
                return groups
            except GroupsLost as error:
                await self.buffer.reissue(error.tickets)

    async def _learn(self, step: int, clock: StepClock) -> dict[str, float]:
        clock.enter(StepPart.LEARN)
        self.learning = step
        return await self.waits.within(step, "the learner's step", self.learner.step(epochs=self.epochs))

    async def _publish(self, step: int, clock: StepClock) -> Push:
        """Publish the learner's weights. The engines load them after the previous push."""
        clock.enter(StepPart.LOAD)
        await self._push.wait_loaded()
        await clock.during(StepPart.PHASE, self.device_phases.begin(PUSHING))
        clock.enter(StepPart.PUBLISH)
        push = await self.waits.within(step, "the learner's weights", self.learner.publish(self.version.learnt))
        await clock.during(StepPart.EVAL, self._evaluated(step, self.evaluations.wait_finished()))
        clock.enter(StepPart.LOAD)
        limit, overlaps = (
            self.waits.push_limit(push.manifest.bytes_with_base),
            self.buffer.max_lag > 0 and push.non_blocking,
        )
        if overlaps:  # a repeated push may wait for the rank's next step
            limit = replace(limit, seconds=limit.seconds + self.waits.limit.seconds)
        self._push.begin(self._load(step, push, limit))
        if not overlaps:
            await self._push.wait_loaded()
        return push

    async def _load(self, step: int, push: Push, limit: Deadline) -> float:
        """Load a push into the engines and free the slots of its step. Return the seconds."""
        began = loop_time()
        loading = self.rollouts.load_weights(push)
        self.version.value = await self.waits.within(step, "the engines to load weights", loading, limit=limit)
        seconds = loop_time() - began
        self.evaluations.begin(step, self.version.value)
        await self.buffer.release(step)
        return seconds

    async def _evaluated(self, step: int, evaluated: Awaitable[None]) -> None:
        """Wait for the current evaluation, since the served weights must stay until it ends."""
        name = "the evaluation of the weights before it"
        await self.waits.wait_for_groups(step, evaluated, waiting_for=name, last_progress=self._last_progress)

    def _last_progress(self) -> float:
        return max(self.buffer.last_progress(), self.evaluations.last_progress(), self._push.last_progress())

    async def _take(self, producer: asyncio.Task[None]) -> list[Group]:
        """Wait for the groups of a step. Raise the error of a producer or push that fails first."""
        taking, loading = asyncio.create_task(self.buffer.take(self.version.learnt)), self._push.loading
        waits: set[asyncio.Task[Any]] = {taking, producer} | ({loading} if loading is not None else set())
        try:
            while not taking.done():
                done, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if not taking.done() and producer in done and (fault := producer.exception()) is not None:
                    raise first_error(fault)
                if not taking.done() and loading in done:
                    await self._push.wait_loaded()
            return await taking
        finally:
            taking.cancel()

    async def _engine_stats(self, step: int) -> EngineStats:
        return await self.waits.within(step, "the engines' statistics", self.rollouts.engine_stats())

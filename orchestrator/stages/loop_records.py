"""The records of a loop: batches for replay, trajectories, and checkpoints from which the loop resumes."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from temper.envs.core.process import StoredResult
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.loop.buffer import Buffer, HeldGroup, VersionCell
from temper.orchestrator.loop.deadline import Deadline, StuckError, in_thread, within
from temper.orchestrator.loop.length_penalty import AdaptivePenalty
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.step import StepReport
from temper.orchestrator.loop.watches import FailureWatch
from temper.orchestrator.run.event_log import EventLog
from temper.orchestrator.run.loop_state import STATE_FILE, LoopState, SavedLoop, write_groups_of
from temper.orchestrator.session.recording import BatchKeeper, StepBatch, TrainedWith, packages_here
from temper.orchestrator.session.run import Run
from temper.orchestrator.session.trainer import BackgroundWriter
from temper.orchestrator.stages.step_metrics import (
    import_writers,
    records_of_step,
    write_stored_batch,
    write_stored_groups,
)
from temper.rollout.episodes.resume import PartialGroup, PartialGroups, describe_groups
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.stored_turns import GroupsLost
from temper.rollout.trajectory import Ticket, WeightVersion

T = TypeVar("T")


@dataclass(kw_only=True)
class LoopRecords:
    """Writes the records of the steps of `stage`, and restores the loop from a checkpoint.

    `done` is the last step with a row of metrics, `report` its report, and `alarms` its metrics out of their bands. `limit` is
    the deadline of each wait.
    """

    run: Run
    config: LoopConfig
    stage: str
    limit: Deadline
    learner: TrainerGroup
    trained_with: TrainedWith
    teacher: Path | None
    pool: RolloutPool
    version: VersionCell
    buffer: Buffer
    mixture: Mixture
    event_log: EventLog
    keeper: BatchKeeper
    watch: FailureWatch
    penalty: AdaptivePenalty
    done: int
    report: StepReport | None = None
    alarms: dict[str, str] = field(default_factory=dict)
    _partial_groups: PartialGroups = field(init=False)
    _writer: BackgroundWriter = field(init=False)
    _process_lock: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._partial_groups = PartialGroups(note=self.run.progress.note)
        self._writer = BackgroundWriter(self.run.progress.note)

    async def restore(self, saved: SavedLoop | None) -> None:
        """Resume from the checkpoint. Truncate event log, metrics and trajectories to it."""
        self._writer.start(self._start_process(), what=f"{self.stage}: the first record")
        cut = partial(self.event_log.cut, 0 if saved is None else saved.state.event_rows)
        missing = await self._in_thread("the event log to be cut back", cut)
        # Without a pause, so that an audit finds the same steps in both.
        self.run.truncate_records(self.stage, self.done)
        if saved is None:
            return
        if missing:
            event_log = self.run.folder.event_log
            self.run.progress.note(f"{self.stage}: {missing} rows of its past are missing in {event_log}")
        self.event_log.add("continued", {"step": self.done})
        self.mixture.restore(saved.state.mixture)
        self.watch.restore(saved.state.failures)
        self.penalty.restore(saved.state.penalties)
        envs = self.mixture.envs
        groups = [await self._with_task(group) for group in saved.groups if group.draw.env in envs]
        resumed = self.buffer.restore(
            replace(saved.state.buffer, groups=tuple(groups)),
            was=WeightVersion(step=saved.state.version),
            now=self.run.version,
            envs=envs,
        )
        resumed &= self.buffer.unfinished
        partial_groups = [group for group in saved.episodes if group.ticket.number in resumed]
        self._partial_groups = PartialGroups(partial_groups, note=self.run.progress.note)
        if partial_groups:
            self.run.progress.note(f"{self.stage}: {describe_groups(partial_groups)}")

    def take_partial(self, ticket: Ticket) -> PartialGroup | None:
        """Return the partial group of a ticket, sampled before a restart; None for a new group."""
        return self._partial_groups.take(ticket)

    async def write_due(self) -> None:
        """Begin to write the records of the last step that are due: its batch, its trajectories, and a checkpoint.

        The loop waits for the records of the step before, and for the copies of these. Raise an unexpected error of the
        earlier write.
        """
        await self._writer.wait_written()
        assert self.report is not None
        step = self.report.step
        await self._begin_records(self.report, batch=self._batch_is_due(), trajectories=self._trajectories_are_due())
        if step == self.config.steps or step % self.config.checkpoint_every == 0:
            await self._save(step)

    async def write_before_end(self, fault: Exception) -> None:
        """Save before a stop or an error ends the stage. The learner's step must be complete."""
        self.buffer.return_taken()
        await self._writer.drain()
        await self.run.trainer.save_before_end(self.stage, fault, self._save_last)
        await self._writer.drain()
        if self.report is not None:
            await self._begin_records(self.report, trajectories=self._trajectories_are_due())

    async def finish(self) -> None:
        """Wait for the last records, and remove the batches that no checkpoint needs. Raise as `write_due`."""
        await self._writer.wait_written()
        await self._in_thread("old batches to be removed", self.keeper.remove_old)

    async def drain(self, *, at_most_s: float | None = None) -> None:
        """Wait for the last records, or cancel them after that time. Raise nothing."""
        await self._writer.drain(at_most_s=at_most_s)

    def _batch_is_due(self) -> bool:
        """Return whether the last step's batch is due and not recorded."""
        assert self.report is not None
        step = self.report.step
        return self.keeper.due(step) and not self.run.folder.batch_file(self.stage, step).exists()

    def _trajectories_are_due(self) -> bool:
        """Return whether the last step's trajectories are due and not written."""
        assert self.report is not None
        step = self.report.step
        due = step % self.run.config.checkpoints.trajectories_every == 0 or step == self.config.steps
        due = due or self.report.learner["skipped"] > 0 or bool(self.alarms)
        return due and not self.run.folder.trajectory_file(self.stage, step).exists()

    async def _begin_records(self, report: StepReport, *, batch: bool = False, trajectories: bool = False) -> None:
        """Fetch the learner's records of a step, and begin to write its batch and its trajectories if they are due."""
        if batch or trajectories:
            records = await records_of_step(self.learner, limit=self.limit, stage=self.stage)
            writing = self._write_records(report, records, batch=batch, trajectories=trajectories)
            self._writer.start(writing, what=f"{self.stage} step {report.step}: its records")

    async def _write_records(
        self, report: StepReport, records: list[StoredResult], *, batch: bool, trajectories: bool
    ) -> None:
        if batch:
            await self._record_batch(report, records)
        if trajectories:
            await self._write_trajectories(report, records)

    async def _record_batch(self, report: StepReport, records: list[StoredResult]) -> None:
        batch = StepBatch(
            stage=self.stage,
            step=report.step,
            version=report.version,
            trained_with=self.trained_with,
            groups=report.groups,
            records=(),
            teacher=None if self.teacher is None else str(self.teacher),
            packages=packages_here(),
        )
        leave = self.run.trainer.reserved_bytes(self.run.folder.batches)
        await self.run.record_batch(
            self.keeper,
            self.stage,
            report.step,
            lambda path: self._in_process("the batch to be recorded", write_stored_batch, path, batch, records, leave),
        )

    async def _write_trajectories(self, report: StepReport, records: list[StoredResult]) -> None:
        path = self.run.folder.trajectory_file(self.stage, report.step)
        leave = self.run.trainer.reserved_bytes(path.parent)
        args = (path, report.groups, records, report.version, self.config.loss.mask_truncated, leave)
        writing = self._in_process("the trajectories to be written", write_stored_groups, *args)
        await self.run.write_trajectory_file(path, self.stage, report.step, writing)

    async def _save_last(self) -> None:
        """Record the batch of the last step, then save."""
        try:
            if self.report is not None:
                await self._begin_records(self.report, batch=self._batch_is_due())
        except Exception as error:
            self.run.progress.note(f"{self.stage}: the batch of step {self.done} is not recorded: {error}")
        await self._save(self.done)

    async def _save(self, step: int) -> None:
        if step == 0:
            return
        # First these, then the running ones, then the buffer: groups may finish meanwhile.
        waiting = self._partial_groups.waiting
        running = await self._running_groups()
        buffer, unfinished, version = self.buffer.state(), self.buffer.unfinished, self.version.learnt.step
        state = LoopState(
            buffer=replace(buffer, groups=()),
            mixture=self.mixture.state(),
            failures=self.watch.state(),
            penalties=self.penalty.state(),
            version=version,
            event_rows=self.event_log.rows,
        )

        async def write(directory: Path) -> None:
            await self._writer.wait_ended()  # a replay to this checkpoint needs the batch
            args = (directory, buffer.groups, waiting, running, unfinished)
            if lost := await self._in_process("the groups of a checkpoint to be written", write_groups_of, *args):
                self.run.progress.note(f"{self.stage}: {GroupsLost(lost)}; a resumed run samples them again")
            await self._in_thread("the event log to be written", self.event_log.sync)
            # On the loop's thread, because other writers of the state are there.
            self.run.folder.store(replace(self.run.folder.state(), version=version))

        await self.run.trainer.save(self.stage, step, {STATE_FILE: state.to_text()}, write=write)
        self.keeper.saved(step)

    async def _running_groups(self) -> list[PartialGroup]:
        """Return the groups in flight. At lag 0 return none, since sampling repeats them exactly."""
        if self.config.max_lag == 0:
            return []
        asking = self.pool.groups_in_flight()
        return await within(self.limit, asking, stage=self.stage, waiting_for="the episodes in flight")

    async def _with_task(self, held: HeldGroup) -> HeldGroup:
        name = f"task {held.draw.index} of {held.draw.env} to be recreated"
        task = await self._in_thread(name, partial(self.mixture.task, held.draw))
        return replace(held, group=held.group.with_task(task))

    async def _in_process(self, name: str, function: Callable[..., T], *args: object) -> T:
        """Run a function that reads stored turns in another process, one at a time. Messages call its result `name`."""
        async with self._process_lock:  # another one would take seconds to import torch
            return await within(self.limit, self.run.in_process(function, *args), stage=self.stage, waiting_for=name)

    async def _start_process(self) -> None:
        """Let the other process import its modules, which takes seconds, before the first step needs it."""
        with suppress(OSError, StuckError):  # then the first batch is late or reported
            await self._in_process("the process of records to start", import_writers)

    async def _in_thread(self, name: str, function: Callable[[], T]) -> T:
        """Run a function in a thread. Messages call its result `name`."""
        return await within(self.limit, in_thread(function), stage=self.stage, waiting_for=name)

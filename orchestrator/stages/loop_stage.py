"""A stage that runs `orchestrator/loop/loop.py`: it wires sampling, training, records and resume."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.evaluation.step_evaluations import is_of_evaluation, make_step_evaluations
from temper.orchestrator.loop.buffer import (
    Buffer,
    HeldGroup,
    SlotState,
    VersionCell,
)
from temper.orchestrator.loop.config import ShapingConfig
from temper.orchestrator.loop.deadline import Deadline, Waits, in_thread, within
from temper.orchestrator.loop.interfaces import Hooks
from temper.orchestrator.loop.length_penalty import AdaptivePenalty
from temper.orchestrator.loop.loop import Loop
from temper.orchestrator.loop.shaping import shaped
from temper.orchestrator.loop.step import StepReport
from temper.orchestrator.loop.watches import BandWatch, FailureWatch, SkipWatch
from temper.orchestrator.run.checkpoint import place
from temper.orchestrator.run.event_log import EventLog
from temper.orchestrator.run.loop_state import (
    STATE_FILE,
    LoopState,
    SavedLoop,
    read_loop,
    write_groups_of,
)
from temper.orchestrator.run.progress import SamplingCount
from temper.orchestrator.session.context import skipped_steps
from temper.orchestrator.session.recording import BatchKeeper, StepBatch, TrainedWith, packages_here
from temper.orchestrator.session.run import Run
from temper.orchestrator.session.run_supervision import LoopView
from temper.orchestrator.stages.stage import StageInstance
from temper.orchestrator.stages.step_metrics import (
    records_of_step,
    step_metrics,
    write_stored_batch,
    write_stored_groups,
)
from temper.rollout.episodes.resume import PartialGroup, PartialGroups, describe_groups
from temper.rollout.pool.pool import RolloutPool, ignore_reissue
from temper.rollout.stored_turns import GroupsLost
from temper.rollout.trajectory import Group, WeightVersion

T = TypeVar("T")


class LoopStage:
    """One stage of a run. It resumes from its newest checkpoint."""

    def __init__(
        self,
        run: Run,
        config: LoopConfig,
        instance: StageInstance,
        *,
        max_replaced_groups: int = 0,
        has_advantage: Callable[[Group], bool] = lambda group: True,
        shaping: ShapingConfig | None = None,
        teacher: Path | None = None,
    ) -> None:
        """Replace up to `max_replaced_groups` groups without `has_advantage` in a step. The loss compares with `teacher`."""
        self._run = run
        self._config = config
        self._instance = instance
        self._stage = name = instance.name
        self._max_replaced_groups = max_replaced_groups
        self._has_advantage = has_advantage
        self._shaping = shaping or ShapingConfig()
        self._teacher = teacher
        self._watch = FailureWatch(config.max_failures, setting=f"{name}.max_failures")
        self._skips = SkipWatch(run.config.learner.max_skipped, stage=name)
        self._penalty = AdaptivePenalty(self._shaping.accuracy_margin, step=self._shaping.penalty_step)
        self._bands = BandWatch(config.watched_bands, setting=f"{name}.bands")
        self._limit = Deadline(seconds=config.timeout_s, setting=f"{name}.timeout_s")
        self._partial_groups = PartialGroups(note=run.progress.note)
        self._done = 0
        self._report: StepReport | None = None
        self._alarms: dict[str, str] = {}  # of the step of `_report`

    async def run(self) -> Path:
        """Train for the configured steps and return the last checkpoint."""
        run, config = self._run, self._config
        self._learner, self._done = await run.trainer.begin(
            self._stage,
            optim=config.optim,
            loss=config.loss,
            steps=config.steps * config.updates,
            teacher=self._teacher,
            beside_engines=config.max_lag > 0,
        )
        self._builder = run.trainer.batch_builder()
        self._keeper = BatchKeeper(run.folder, self._stage, count=run.config.checkpoints.batches, after=self._done)
        base = place(run.folder.checkpoints(self._stage), self._done) if self._done else run.model_dir
        self._mixture = await in_thread(self._instance.mixture, run.config, config.shares, config.thinking)
        self._event_log = await self._in_thread("the event log", partial(EventLog, run.folder.event_log, self._stage))
        self._buffer = Buffer(
            groups_per_step=config.groups_per_step,
            max_lag=config.max_lag,
            max_replaced_groups=self._max_replaced_groups,
            slots=config.slots,
            min_answers=config.min_answers,
            next_ticket=self._instance.first_ticket,
            overridden=config.loss.overrides,
            sampling=config.sampling,
            has_advantage=self._has_advantage,
            event_log=self._event_log.add,
        )
        saved = await self._in_thread("the state of the loop", partial(self._saved, base))
        pool = await run.engines.serve(base, who=self._stage)
        await self._restore(saved)
        await in_thread(self._restore_watches)
        run.progress.stage(self._stage, config.steps)
        self._loop = loop = self._loop_of(pool, self._learner)
        run.supervision.shows(
            LoopView(stage=self._stage, buffer=self._buffer, version=loop.version, failures=self._watch)
        )
        pool.on_reissue = self._reissued
        try:
            async with run.supervision.sampling(self._stage, asked=self._answers, look=self._look):
                await loop.run(self._done + 1, config.steps)
            model = await run.trainer.trained(self._stage)
            await self._in_thread("old batches to be removed", self._keeper.remove_old)
        except Exception:
            run.engines.forget_served()  # also if the last checkpoint failed: the stage resumes from an earlier one
            raise
        finally:
            pool.on_reissue = ignore_reissue
        run.engines.set_served(model)
        return model

    def _loop_of(self, pool: RolloutPool, learner: TrainerGroup) -> Loop:
        run, config = self._run, self._config
        return Loop(
            rollouts=pool,
            learner=learner,
            mixture=self._mixture,
            buffer=self._buffer,
            version=VersionCell(run.version),
            group_size=config.group_size,
            hooks=Hooks(
                build_batches=self._build,
                on_group=self._finish,
                on_step=self._log,
                save=self._save_when_due,
                on_fault=self._save_at_fault,
                take_partial=self._partial_groups.take,
            ),
            waits=Waits(
                stage=self._stage,
                stop=run.stop,
                limit=self._limit,
                push_limit=run.engines.push_limit,
                last_restart_at=run.engines.last_restart_at,
            ),
            epochs=config.epochs,
            evaluations=make_step_evaluations(run, config, pool, stage=self._stage),
            device_phases=run.device_phases,
        )

    @property
    def _answers(self) -> int:
        return self._config.groups_per_step * self._config.group_size

    def _look(self, count: SamplingCount) -> bool:
        """Count the finished answers for the next step. Return whether the engines sample any."""
        states = Counter(state for _, state in self._buffer.slots.values())
        name = f"{self._stage} step {self._loop.learning + 1}"
        if count.name != name:
            count.begin(name, asked=self._answers)
        count.finished = min(self._answers, states[SlotState.READY] * self._config.group_size)
        return states[SlotState.GENERATING] > 0

    def _reissued(self, number: int, why: str) -> None:
        if not is_of_evaluation(number):
            self._event_log.add("reissued", {"ticket": number, "why": why})

    def _finish(self, group: Group) -> Group:
        self._watch.add(group)
        limit, penalty = self._run.config.rollout.limits.turn_tokens, self._penalty.of(group.ticket.task.env.name)
        return shaped(group, self._shaping, turn_tokens=limit, length_penalty=penalty)

    async def _build(self, groups: list[Group]) -> None:
        """Let the ranks build the batches, which stay there."""
        config = self._config
        updates, build = config.updates_per_step, self._builder.build_from_groups
        try:
            await self._learner.build(groups, partial(build, loss=config.loss, updates=updates, epochs=config.epochs))
        except GroupsLost as error:
            self._run.progress.note(f"{self._stage}: {error}; they are sampled again")
            raise

    async def _log(self, report: StepReport) -> None:
        metrics = step_metrics(report)
        metrics |= self._penalty.add([*report.groups, *report.dropped.groups])
        self._run.log(self._stage, report.step, metrics)
        self._done, self._report = report.step, report  # last, since a step without its row is not saved
        self._alarms = self._bands.add(metrics)
        self._run.alarm(self._stage, report.step, self._alarms)

    async def _save_when_due(self, step: int) -> None:
        self._run.trainer.raise_failed()
        assert self._report is not None
        await self._record(self._report)
        if step == self._config.steps or step % self._config.checkpoint_every == 0:
            await self._save(step)
        await self._write_trajectories(self._report)
        skipped = self._report.learner["skipped"] == 1.0
        self._skips.add(step, skipped=skipped, evidence=f"their trajectories are in {self._run.folder.trajectories}")
        self._bands.check(step)

    async def _record(self, report: StepReport) -> None:
        """Record the batch of a step if it is due and not recorded."""
        if not self._keeper.due(report.step) or self._run.folder.batch_file(self._stage, report.step).exists():
            return
        records = await records_of_step(self._learner, limit=self._limit, stage=self._stage)
        batch = StepBatch(
            stage=self._stage,
            step=report.step,
            version=report.version,
            trained_with=TrainedWith.of(self._config, self._builder),
            groups=report.groups,
            records=(),
            teacher=None if self._teacher is None else str(self._teacher),
            packages=packages_here(),
        )
        leave = self._run.trainer.reserved(self._run.folder.batches)
        await self._run.record_batch(
            self._keeper,
            self._stage,
            report.step,
            lambda path: self._in_process("the batch to be recorded", write_stored_batch, path, batch, records, leave),
        )

    async def _write_trajectories(self, report: StepReport) -> None:
        """Write the trajectories of a step if they are due and not written."""
        path = self._run.folder.trajectory_file(self._stage, report.step)
        due = report.step % self._run.config.checkpoints.trajectories_every == 0 or report.step == self._config.steps
        if (due or report.learner["skipped"] > 0 or self._alarms) and not path.exists():
            leave, groups = self._run.trainer.reserved(path.parent), report.groups
            records = await records_of_step(self._learner, limit=self._limit, stage=self._stage)
            args = (path, groups, records, report.version, self._config.loss.mask_truncated, leave)
            writing = self._in_process("the trajectories to be written", write_stored_groups, *args)
            await self._run.write_trajectory_file(path, self._stage, report.step, writing)

    async def _save_at_fault(self, fault: Exception) -> None:
        """Save before a stop or an error ends the stage, unless the learner's step is incomplete."""
        if self._loop.learning == self._done:
            self._buffer.return_taken()
            await self._run.trainer.save_before_end(self._stage, fault, self._save_last)
            if self._report is not None:
                await self._write_trajectories(self._report)

    async def _save_last(self) -> None:
        """Record the batch of the last step, then save."""
        try:
            if self._report is not None:
                await self._record(self._report)
        except Exception as error:
            self._run.progress.note(f"{self._stage}: the batch of step {self._done} is not recorded: {error}")
        await self._save(self._done)

    async def _save(self, step: int) -> None:
        if step == 0:
            return
        # First these, then the running ones, then the buffer: groups may finish meanwhile.
        waiting = self._partial_groups.waiting
        running = await self._running()
        buffer, unfinished, version = self._buffer.state(), self._buffer.unfinished, self._loop.version.learnt.step
        state = LoopState(
            buffer=replace(buffer, groups=()),
            mixture=self._mixture.state(),
            failures=self._watch.state(),
            penalties=self._penalty.state(),
            version=version,
            event_rows=self._event_log.rows,
        )

        async def write(directory: Path) -> None:
            if lost := await self._run.in_process(
                write_groups_of, directory, buffer.groups, waiting, running, unfinished
            ):
                self._run.progress.note(f"{self._stage}: {GroupsLost(lost)}; a resumed run samples them again")

        await self._in_thread("the event log to be written", self._event_log.sync)
        self._run.folder.store(replace(self._run.folder.state(), version=version))
        await self._run.trainer.save(self._stage, step, {STATE_FILE: state.to_text()}, write=write)
        self._keeper.saved(step)

    async def _running(self) -> list[PartialGroup]:
        """Return the groups in flight. At lag 0 return none, since sampling repeats them exactly."""
        if self._config.max_lag == 0:
            return []
        asking = self._loop.rollouts.groups_in_flight()
        return await within(self._limit, asking, stage=self._stage, waiting_for="the episodes in flight")

    def _saved(self, checkpoint: Path) -> SavedLoop | None:
        """Read the loop's state of a checkpoint and restore its version; None before the first step."""
        if not self._done:
            return None
        saved = read_loop(checkpoint)
        self._run.folder.store(replace(self._run.folder.state(), version=saved.state.version))
        return saved

    async def _restore(self, saved: SavedLoop | None) -> None:
        """Resume from the checkpoint. Truncate event log, metrics and trajectories to it."""
        cut = partial(self._event_log.cut, 0 if saved is None else saved.state.event_rows)
        missing = await self._in_thread("the event log to be cut back", cut)
        self._run.truncate_records(
            self._stage, self._done
        )  # without a pause, so that an audit finds the same steps in both
        if saved is None:
            return
        if missing:
            event_log = self._run.folder.event_log
            self._run.progress.note(f"{self._stage}: {missing} rows of its past are missing in {event_log}")
        self._event_log.add("continued", {"step": self._done})
        self._mixture.restore(saved.state.mixture)
        self._watch.restore(saved.state.failures)
        self._penalty.restore(saved.state.penalties)
        envs = self._mixture.envs
        groups = [await self._made_again(group) for group in saved.groups if group.draw.env in envs]
        resumed = self._buffer.restore(
            replace(saved.state.buffer, groups=tuple(groups)),
            was=WeightVersion(step=saved.state.version),
            now=self._run.version,
            envs=envs,
        )
        resumed &= self._buffer.unfinished
        partial_groups = [group for group in saved.episodes if group.ticket.number in resumed]
        self._partial_groups = PartialGroups(partial_groups, note=self._run.progress.note)
        if partial_groups:
            self._run.progress.note(f"{self._stage}: {describe_groups(partial_groups)}")

    def _restore_watches(self) -> None:
        """Count the steps before that were skipped or outside of their bands, from the metrics file."""
        rows = self._run.rows(self._stage)
        self._skips.restore(skipped_steps(rows))
        for row in rows:
            self._bands.add(row.values)

    async def _made_again(self, held: HeldGroup) -> HeldGroup:
        name = f"task {held.draw.index} of {held.draw.env} to be recreated"
        task = await self._in_thread(name, partial(self._mixture.task, held.draw))
        return replace(held, group=held.group.with_task(task))

    async def _in_process(self, what: str, function: Callable[..., T], *args: object) -> T:
        """Run a function that reads stored turns in another process, with the deadline of the stage's waits."""
        return await within(self._limit, self._run.in_process(function, *args), stage=self._stage, waiting_for=what)

    async def _in_thread(self, what: str, function: Callable[[], T]) -> T:
        """Run a function in a thread with the deadline of the stage's waits. `what` names it."""
        return await within(self._limit, in_thread(function), stage=self._stage, waiting_for=what)

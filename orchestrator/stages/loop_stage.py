"""A stage that runs `orchestrator/loop/loop.py`: it wires sampling, training and records."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from temper.learner.batches.builder import BatchBuilder
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.evaluation.step_evaluations import is_of_evaluation, make_step_evaluations
from temper.orchestrator.loop.buffer import Buffer, SlotState, VersionCell
from temper.orchestrator.loop.config import ShapingConfig
from temper.orchestrator.loop.deadline import Deadline, Waits, in_thread, within
from temper.orchestrator.loop.interfaces import Hooks
from temper.orchestrator.loop.length_penalty import AdaptivePenalty
from temper.orchestrator.loop.loop import Loop
from temper.orchestrator.loop.shaping import shape_rewards
from temper.orchestrator.loop.step import StepReport
from temper.orchestrator.loop.watches import BandWatch, FailureWatch, SkipWatch
from temper.orchestrator.run.checkpoint import place
from temper.orchestrator.run.event_log import EventLog
from temper.orchestrator.run.loop_state import SavedLoop, read_loop
from temper.orchestrator.run.progress import SamplingCount
from temper.orchestrator.session.context import skipped_steps
from temper.orchestrator.session.recording import BatchKeeper, TrainedWith
from temper.orchestrator.session.run import Run
from temper.orchestrator.session.run_supervision import LoopView
from temper.orchestrator.stages.loop_records import LoopRecords
from temper.orchestrator.stages.stage import StageInstance
from temper.orchestrator.stages.step_metrics import step_metrics
from temper.rollout.pool.pool import ignore_reissue
from temper.rollout.stored_turns import GroupsLost
from temper.rollout.trajectory import Group

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

    async def run(self) -> Path:
        """Train for the configured steps and return the last checkpoint."""
        run, config, stage = self._run, self._config, self._stage
        learner, done = await run.trainer.begin(
            stage,
            optim=config.optim,
            loss=config.loss,
            steps=config.steps * config.updates,
            teacher=self._teacher,
            beside_engines=config.max_lag > 0,
        )
        builder = run.trainer.batch_builder()
        keeper = BatchKeeper(run.folder, stage, count=run.config.checkpoints.batches, after=done)
        base = place(run.folder.checkpoints(stage), done) if done else run.model_dir
        mixture = await in_thread(self._instance.mixture, run.config, config.shares, config.thinking)
        event_log = await self._in_thread("the event log", partial(EventLog, run.folder.event_log, stage))
        buffer = self._make_buffer(event_log)
        saved = await self._in_thread("the state of the loop", partial(self._read_saved, base)) if done else None
        pool = await run.engines.serve(base, who=stage)
        version = VersionCell(run.version)
        records = LoopRecords(
            run=run,
            config=config,
            stage=stage,
            limit=self._limit,
            learner=learner,
            trained_with=TrainedWith.of(config, builder),
            teacher=self._teacher,
            pool=pool,
            version=version,
            buffer=buffer,
            mixture=mixture,
            event_log=event_log,
            keeper=keeper,
            watch=self._watch,
            penalty=self._penalty,
            done=done,
        )
        await records.restore(saved)
        await in_thread(self._restore_watches)
        run.progress.stage(stage, config.steps)
        loop = self._make_loop(records, builder)
        run.supervision.shows(LoopView(stage=stage, buffer=buffer, version=version, failures=self._watch))
        pool.on_reissue = partial(self._log_reissue, event_log)
        try:
            async with run.supervision.sampling(stage, asked=self._answers, look=partial(self._look, loop)):
                await loop.run(done + 1, config.steps)
            model = await run.trainer.wait_for_model(stage)
            await records.finish()
        except Exception:
            run.engines.forget_served()  # also if the last checkpoint failed: the stage resumes from an earlier one
            await records.drain()
            raise
        finally:
            await records.drain(at_most_s=0)  # cancels what is left after a second signal
            pool.on_reissue = ignore_reissue
        run.engines.set_served(model)
        return model

    def _make_buffer(self, event_log: EventLog) -> Buffer:
        config = self._config
        return Buffer(
            groups_per_step=config.groups_per_step,
            max_lag=config.max_lag,
            max_replaced_groups=self._max_replaced_groups,
            slots=config.slots,
            min_answers=config.min_answers,
            next_ticket=self._instance.first_ticket,
            overridden=config.loss.overrides,
            sampling=config.sampling,
            has_advantage=self._has_advantage,
            event_log=event_log.add,
        )

    def _make_loop(self, records: LoopRecords, builder: BatchBuilder) -> Loop:
        run, config, pool = self._run, self._config, records.pool
        loop: Loop

        async def save_before_end(fault: Exception) -> None:
            if loop.learning == records.done:  # else the learner's step is incomplete
                await records.write_before_end(fault)

        loop = Loop(
            rollouts=pool,
            learner=records.learner,
            mixture=records.mixture,
            buffer=records.buffer,
            version=records.version,
            group_size=config.group_size,
            hooks=Hooks(
                build_batches=partial(self._build_batches, records.learner, builder),
                on_group=self._shape,
                on_step=partial(self._log, records),
                save=partial(self._save, records),
                on_fault=save_before_end,
                take_partial=records.take_partial,
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
        return loop

    @property
    def _answers(self) -> int:
        return self._config.groups_per_step * self._config.group_size

    def _look(self, loop: Loop, count: SamplingCount) -> bool:
        """Count the finished answers for the next step. Return whether the engines sample any."""
        states = Counter(state for _, state in loop.buffer.slots.values())
        name = f"{self._stage} step {loop.learning + 1}"
        if count.name != name:
            count.begin(name, asked=self._answers)
        count.finished = min(self._answers, states[SlotState.READY] * self._config.group_size)
        return states[SlotState.GENERATING] > 0

    @staticmethod
    def _log_reissue(event_log: EventLog, number: int, why: str) -> None:
        if not is_of_evaluation(number):
            event_log.add("reissued", {"ticket": number, "why": why})

    def _shape(self, group: Group) -> Group:
        self._watch.add(group)
        limit, penalty = self._run.config.rollout.limits.turn_tokens, self._penalty.of(group.ticket.task.env.name)
        return shape_rewards(group, self._shaping, turn_tokens=limit, length_penalty=penalty)

    async def _build_batches(self, learner: TrainerGroup, builder: BatchBuilder, groups: list[Group]) -> None:
        """Let the ranks build the batches, which stay there."""
        config = self._config
        updates, build = config.updates_per_step, builder.build_from_groups
        try:
            await learner.build(groups, partial(build, loss=config.loss, updates=updates, epochs=config.epochs))
        except GroupsLost as error:
            self._run.progress.note(f"{self._stage}: {error}; they are sampled again")
            raise

    async def _log(self, records: LoopRecords, report: StepReport) -> None:
        metrics = step_metrics(report)
        metrics |= self._penalty.add([*report.groups, *report.dropped.groups])
        self._run.log(self._stage, report.step, metrics)
        records.done, records.report = report.step, report  # last, since a step without its row is not saved
        records.alarms = self._bands.add(metrics)
        self._run.alarm(self._stage, report.step, records.alarms)

    async def _save(self, records: LoopRecords, step: int) -> None:
        self._run.trainer.raise_failed()
        await records.write_due()
        assert records.report is not None
        skipped = records.report.learner["skipped"] == 1.0
        self._skips.add(step, skipped=skipped, evidence=f"their trajectories are in {self._run.folder.trajectories}")
        self._bands.check(step)

    def _read_saved(self, checkpoint: Path) -> SavedLoop:
        """Read the loop's state of a checkpoint and restore its version."""
        saved = read_loop(checkpoint)
        self._run.folder.store(replace(self._run.folder.state(), version=saved.state.version))
        return saved

    def _restore_watches(self) -> None:
        """Count the steps before that were skipped or outside of their bands, from the metrics file."""
        rows = self._run.rows(self._stage)
        self._skips.restore(skipped_steps(rows))
        for row in rows:
            self._bands.add(row.values)

    async def _in_thread(self, name: str, function: Callable[[], T]) -> T:
        """Run a function in a thread with the deadline of the stage's waits. Messages call its result `name`."""
        return await within(self._limit, in_thread(function), stage=self._stage, waiting_for=name)

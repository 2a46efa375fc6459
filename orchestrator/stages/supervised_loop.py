"""Supervised stages: the loop, which builds the next batch while the learner works, and sampling for training data."""

import asyncio
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from temper.envs.core.task import Task
from temper.envs.data.blocks import BLOCK
from temper.learner.batches.micro_batches import TrainBatch
from temper.learner.batches.samples import TrainingSample
from temper.learner.losses.config import LossConfig
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.config.supervised import SampledDataConfig, SupervisedConfig
from temper.orchestrator.data.chat_data import DialogueTokenizer
from temper.orchestrator.data.row_intake import ROWS, RowIntake, counts_text, limit_name
from temper.orchestrator.loop.deadline import Deadline, in_thread, together, within
from temper.orchestrator.loop.mixture import Draw, Mixture
from temper.orchestrator.loop.step import StepClock, StepPart
from temper.orchestrator.loop.watches import FailureWatch, SkipWatch
from temper.orchestrator.run.folder import write_atomically
from temper.orchestrator.run.metrics_log import read_metrics
from temper.orchestrator.session.context import skipped_steps
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.stage import StageInstance
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.sampling import Sampling
from temper.rollout.stored_turns import read_group
from temper.rollout.trajectory import Group, Ticket, WeightVersion

NLL = LossConfig(objective="nll")
FILTERED = "data/filtered"
"""Sequences missing from a step's batch."""


def sequence_batches(run: Run, sequences: Callable[[int], list[TrainingSample]]) -> Callable[[int], TrainBatch]:
    builder = cache(run.trainer.batch_builder)  # called after the learner has measured its passes
    return lambda step: builder().build_from_samples(sequences(step))


async def train_supervised(
    run: Run,
    name: str,
    config: SupervisedConfig,
    batch: Callable[[int], TrainBatch],
    *,
    sequences: int,
    loss: LossConfig = NLL,
) -> Path:
    """Train on `batch(step)` for the steps of `config`, resuming if interrupted. Return the last checkpoint.

    `name` is the instance. A batch with fewer than `sequences` is trained as it is, and the missing ones are counted.
    """
    steps = config.steps
    learner, done = await run.trainer.begin(name, optim=config.optim, loss=loss, steps=steps, beside_engines=False)
    run.truncate_records(name, done)
    run.progress.stage(name, steps)
    loop = _SupervisedLoop(run, name, config, learner, _Ahead(batch, last=steps), sequences=sequences, done=done)
    await loop.run()
    _log_filtered(run, name, sequences=steps * sequences)
    return await run.trainer.wait_for_model(name)


class _SupervisedLoop:
    """The steps of a stage after the ones that are `done`."""

    def __init__(
        self,
        run: Run,
        name: str,
        config: SupervisedConfig,
        learner: TrainerGroup,
        batches: "_Ahead",
        *,
        sequences: int,
        done: int,
    ) -> None:
        self._run = run
        self._name = name
        self._config = config
        self._learner = learner
        self._batches = batches
        self._sequences = sequences
        self._skips = SkipWatch(run.config.learner.max_skipped, stage=name)
        self._clock = StepClock((StepPart.BATCH, StepPart.LEARN, StepPart.LOG, StepPart.SAVE))
        self._done = self._learning = done  # differ during a step

    async def run(self) -> None:
        """Run the steps. Save before a stop or an error between two steps."""
        self._skips.restore(skipped_steps(await in_thread(self._run.rows, self._name)))
        try:
            for step in range(self._done + 1, self._config.steps + 1):
                self._run.stop.check()
                await self._step(step)
                self._clock.enter(StepPart.SAVE)
                self._run.trainer.raise_failed()
                if step % self._config.checkpoint_every == 0 or step == self._config.steps:
                    await self._save()
        except Exception as fault:
            if self._learning == self._done:
                await self._run.trainer.save_before_end(self._name, fault, self._save)
            raise
        finally:
            self._batches.close()

    async def _step(self, step: int) -> None:
        self._clock.enter(StepPart.BATCH)
        limit, doing = self._run.config.deadlines.step(), f"{self._name} step {step}"
        built = await within(limit, self._batches.take(step), stage=doing, waiting_for="its batch to be built")
        self._clock.enter(StepPart.LEARN)
        self._learning = step
        learning = self._learner.step(built)
        metrics = await within(limit, learning, stage=doing, waiting_for="the learner's step")
        times = self._clock.report().metrics()
        named = {f"train/{key}": value for key, value in metrics.items()}
        left_out = self._sequences - built.samples
        self._run.log(self._name, step, named | {"train/tokens": built.tokens, FILTERED: left_out} | times)
        self._done = step
        self._skips.add(step, skipped=bool(metrics["skipped"]), evidence="check their rows and learning rates")

    async def _save(self) -> None:
        if self._done:
            await self._run.trainer.save(self._name, self._done, {})


def row_intake(
    config: SupervisedConfig,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    thinking: ThinkingConfig,
    *,
    longest: int | None,
) -> RowIntake:
    """Return the intake of a stage's rows. `longest` is the limit without a setting."""
    setting, max_tokens = limit_name(name, config.max_tokens), config.max_tokens or longest
    return RowIntake(DialogueTokenizer.of(tokenizer, thinking), max_tokens=max_tokens, setting=setting)


def log_data(run: Run, name: str, source: str, counts: Mapping[str, int], *, drawn: int) -> None:
    """Report the data of a stage, once in the metrics file too. `drawn` is the number of samples that all steps draw."""
    if ROWS not in counts:  # streamed rows
        remarks = f"; of the first {BLOCK}, {counts_text(counts)}" if counts else ""
        run.progress.note(f"{name}: streams rows from {source}{remarks}")
        return
    epochs = round(drawn / counts[ROWS], 2)
    run.progress.note(f"{name}: {counts_text(counts)}, {epochs} epochs, from {source}")
    _log_once(run, name, 0, {"source": source, **counts, "epochs": epochs})


def _log_filtered(run: Run, name: str, *, sequences: int) -> None:
    rows = [row for row in read_metrics(run.folder.metrics) if row.stage == name]
    left_out = round(sum(row.values.get(FILTERED, 0.0) for row in rows))
    if left_out:
        run.progress.note(f"{name}: {left_out} of {sequences} sequences were too long and filtered")
        _log_once(run, name, rows[-1].step, {"sequences": sequences, "too long and filtered": left_out})


def _log_once(run: Run, name: str, step: int, what: dict[str, Any]) -> None:
    event = {"kind": "data", "what": what}
    if not any((row.stage, row.event) == (name, event) for row in read_metrics(run.folder.metrics)):
        run.metrics.event(name, step, "data", what)


class _Ahead:
    """Builds the batch of the next step ahead of time."""

    def __init__(self, batch: Callable[[int], TrainBatch], *, last: int) -> None:
        self._batch = batch
        self._last = last
        self._next: tuple[int, asyncio.Task[TrainBatch]] | None = None

    async def take(self, step: int) -> TrainBatch:
        if self._next is None or self._next[0] != step:
            self._next = self._started(step)
        batch = await self._next[1]
        self._next = self._started(step + 1) if step < self._last else None
        return batch

    def close(self) -> None:
        if self._next is not None:
            self._next[1].cancel()

    def _started(self, step: int) -> tuple[int, asyncio.Task[TrainBatch]]:
        return step, asyncio.create_task(in_thread(lambda: self._batch(step).build_all()))


WAVE = 64


async def sample_once(
    run: Run,
    asking: SampledDataConfig,
    mixture: Mixture,
    *,
    instance: StageInstance,
    lines: Callable[[Draw, Group], list[str]],
    wanted: str,
) -> Path:
    """Return the file with `lines` of each group that the newest model samples. Create it if necessary.

    `wanted` names a line. Raise `ValueError` without any, and `TooManyFailures` if too many answers fail outside the model.
    """
    name = instance.name
    path = run.folder.answers_file(name)
    if path.exists():
        return path
    pool = await run.engines.serve(run.model_dir, who=name)
    draws = [mixture.draw() for _ in range(asking.tasks)]
    kept: list[str] = []
    watch = FailureWatch(asking.max_failures, setting=f"{name}.max_failures")
    limit = Deadline(seconds=asking.timeout_s, setting=f"{name}.timeout_s")
    async with run.supervision.sampling(name, asked=len(draws) * asking.samples) as count:

        async def answered(ticket: Ticket) -> Group:
            group = await watch.on(read_group(pool.run_group(ticket, asking.samples)))
            count.add(group)
            return group

        for first in range(0, len(draws), WAVE):
            wave = draws[first : first + WAVE]
            making = within(limit, in_thread(_made, mixture, wave), stage=name, waiting_for="its tasks to be created")
            tasks = await run.stop.wait_or(making)
            tickets = _tickets(tasks, instance.first_ticket + first, admitted=run.version, sampling=asking.sampling)
            answering, last_restart_at = together(map(answered, tickets)), run.engines.last_restart_at
            waiting = within(
                limit, answering, stage=name, waiting_for="the model's own answers", last_restart_at=last_restart_at
            )
            groups = await run.stop.wait_or(waiting)
            kept += [line for draw, group in zip(wave, groups, strict=True) for line in lines(draw, group)]
            run.progress.note(f"{name}: {first + len(wave)} of {len(draws)} tasks, {len(kept)} {wanted}")
    watch.conclude()
    if not kept:
        raise ValueError(
            f"{name}: {len(draws)} tasks gave no {wanted}; train the model first (sft), or raise {name}.tasks or {name}.samples"
        )
    write_atomically(path, "\n".join(kept) + "\n")
    return path


def _tickets(tasks: list[Task], first: int, *, admitted: WeightVersion, sampling: Sampling) -> list[Ticket]:
    return [
        Ticket(number=first + place, task=task, admitted=admitted, sampling=sampling)
        for place, task in enumerate(tasks)
    ]


def _made(mixture: Mixture, draws: list[Draw]) -> list[Task]:
    return [mixture.task(draw) for draw in draws]

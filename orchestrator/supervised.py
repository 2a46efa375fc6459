"""The training loop of supervised stages: the next batch is built while the learner works on this one."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from learner.batch import Sequence, TrainBatch, make_batch
from learner.config import OptimConfig
from learner.loss_config import LossConfig
from orchestrator.deadline import within
from orchestrator.run import Run
from rollout.renderer import load_tokenizer, pad_id

STEP_TIMEOUT_S = 600.0
NLL = LossConfig(objective="nll")


def sequence_batches(run: Run, sequences: Callable[[int], list[Sequence]]) -> Callable[[int], TrainBatch]:
    """The batches of the steps whose sequences a function gives, for the run's learner."""
    learner, pad = run.config.learner, pad_id(load_tokenizer(run.model_dir))

    def batch(step: int) -> TrainBatch:
        return make_batch(
            sequences(step), ranks=learner.ranks, micro_batch_tokens=learner.micro_batch_tokens, pad_id=pad
        )

    return batch


async def train_supervised(
    run: Run,
    *,
    stage: str,
    optim: OptimConfig,
    steps: int,
    checkpoint_every: int,
    batch: Callable[[int], TrainBatch],
    loss: LossConfig = NLL,
) -> Path:
    """Train on `batch(step)` for `steps`, from where the stage was interrupted; returns the last step's checkpoint."""
    learner, done = await run.learning(stage=stage, optim=optim, loss=loss, steps=steps, beside_engines=False)
    batches = _Ahead(batch)
    run.metrics.truncate(stage, done)
    run.progress.stage(stage, steps)
    for step in range(done + 1, steps + 1):
        if run.stop.is_set and step > done + 1:
            await run.save(stage, step - 1, {})
        run.stop.check()
        began = time.monotonic()
        built = await batches.take(step)
        metrics = await within(
            STEP_TIMEOUT_S, learner.step(built), stage=f"{stage} step {step}", waiting_for=lambda: "the learner's step"
        )
        seconds = time.monotonic() - began
        named = {f"train/{name}": value for name, value in metrics.items()}
        run.log(stage, step, named | {"train/tokens": built.tokens, "time/step_s": seconds})
        if step % checkpoint_every == 0 or step == steps:
            await run.save(stage, step, {})
    return run.trained(stage)


class _Ahead:
    """Builds the batch of the step after the one that was taken."""

    def __init__(self, batch: Callable[[int], TrainBatch]) -> None:
        self._batch = batch
        self._next: tuple[int, asyncio.Task[TrainBatch]] | None = None

    async def take(self, step: int) -> TrainBatch:
        if self._next is None or self._next[0] != step:
            self._next = (step, asyncio.create_task(asyncio.to_thread(self._batch, step)))
        batch = await self._next[1]
        self._next = (step + 1, asyncio.create_task(asyncio.to_thread(self._batch, step + 1)))
        return batch

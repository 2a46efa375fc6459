"""`sft`: supervised fine-tuning on demonstrations or chat files."""

import asyncio
import time
from pathlib import Path

from learner.batch import TrainBatch, make_batch
from learner.config import LossConfig
from orchestrator.deadline import within
from orchestrator.dialogue_writer import DialogueWriter
from orchestrator.dialogues import ChatFile, Demonstrations
from orchestrator.run import Run
from orchestrator.sft_data import SftData
from rollout.renderer import Renderer, load_tokenizer
from rollout.thought import ThoughtTags

STAGE = "sft"
STEP_TIMEOUT_S = 600.0


async def run_sft(run: Run) -> Path:
    """Train for `sft.steps`; returns the checkpoint of the last step."""
    config = run.config.sft
    learner, done = await run.learning(
        stage=STAGE, optim=config.optim, loss=LossConfig(objective="nll"), steps=config.steps, beside_engines=False
    )
    batches = _Batches(run)
    run.metrics.truncate(STAGE, done)
    run.progress.stage(STAGE, config.steps)
    for step in range(done + 1, config.steps + 1):
        if run.stop.is_set and step > done + 1:
            await run.save(STAGE, step - 1, {})
        run.stop.check()
        began = time.monotonic()
        batch = await batches.take(step)
        metrics = await within(
            STEP_TIMEOUT_S, learner.step(batch), stage=f"sft step {step}", waiting_for=lambda: "the learner's step"
        )
        seconds = time.monotonic() - began
        run.log(STAGE, step, _named(metrics) | {"train/tokens": batch.tokens, "time/step_s": seconds})
        if step % config.checkpoint_every == 0 or step == config.steps:
            await run.save(STAGE, step, {})
    return run.trained(STAGE)


class _Batches:
    """Builds the next step's batch while the learner works on this one."""

    def __init__(self, run: Run) -> None:
        config, self._learner = run.config, run.config.learner
        tokenizer, thought = load_tokenizer(run.model_dir), config.rollout.thought
        tags = ThoughtTags.find(tokenizer, closing=thought.closing)
        writer = DialogueWriter(
            Renderer(tokenizer, thought), tags, thought, train_closing=config.sft.thoughts.train_closing
        )
        self._pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        if config.sft.data is None:
            source = Demonstrations(run.mixture(config.sft.shares)).dialogue
        else:
            chat = ChatFile(Path(config.sft.data), on_error=config.sft.on_error, seed=config.seed)
            if chat.skipped:
                run.progress.note(f"sft: {chat.skipped} malformed rows of {config.sft.data} were skipped")
            source = chat.dialogue
        self._data = SftData(
            source,
            writer,
            config.sft.thoughts,
            batch_size=config.sft.batch_size,
            max_tokens=config.rollout.limits.total_tokens,
            seed=config.seed,
        )
        self._next: tuple[int, asyncio.Task[TrainBatch]] | None = None

    async def take(self, step: int) -> TrainBatch:
        if self._next is None or self._next[0] != step:
            self._next = (step, asyncio.create_task(asyncio.to_thread(self._build, step)))
        batch = await self._next[1]
        self._next = (step + 1, asyncio.create_task(asyncio.to_thread(self._build, step + 1)))
        return batch

    def _build(self, step: int) -> TrainBatch:
        learner = self._learner
        return make_batch(
            self._data.batch(step),
            ranks=learner.ranks,
            micro_batch_tokens=learner.micro_batch_tokens,
            pad_id=self._pad_id,
        )


def _named(metrics: dict[str, float]) -> dict[str, float]:
    return {f"train/{name}": value for name, value in metrics.items()}

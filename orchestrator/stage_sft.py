"""`sft`: supervised fine-tuning on demonstrations or chat files."""

from pathlib import Path

from orchestrator.dialogue_writer import DialogueWriter
from orchestrator.dialogues import ChatFile, Demonstrations
from orchestrator.run import Run
from orchestrator.sft_data import SftData
from orchestrator.supervised import sequence_batches, train_supervised
from rollout.renderer import Renderer, load_tokenizer
from rollout.thought import ThoughtTags

STAGE = "sft"


async def run_sft(run: Run) -> Path:
    """Train for `sft.steps`; returns the checkpoint of the last step."""
    config = run.config.sft
    return await train_supervised(
        run,
        stage=STAGE,
        optim=config.optim,
        steps=config.steps,
        checkpoint_every=config.checkpoint_every,
        batch=sequence_batches(run, _data(run).batch),
    )


def _data(run: Run) -> SftData:
    config, thought = run.config, run.config.rollout.thought
    if config.sft.data is None:
        source = Demonstrations(run.mixture(config.sft.shares)).dialogue
    else:
        chat = ChatFile(Path(config.sft.data), on_error=config.sft.on_error, seed=config.seed)
        if chat.skipped:
            run.progress.note(f"sft: {chat.skipped} malformed rows of {config.sft.data} were skipped")
        source = chat.dialogue
    tokenizer = load_tokenizer(run.model_dir)
    writer = DialogueWriter(
        Renderer(tokenizer, thought),
        ThoughtTags.find(tokenizer, closing=thought.closing),
        thought,
        train_closing=config.sft.thoughts.train_closing,
    )
    return SftData(
        source,
        writer,
        config.sft.thoughts,
        batch_size=config.sft.batch_size,
        max_tokens=config.rollout.limits.total_tokens,
        seed=config.seed,
    )

"""`sft`: supervised fine-tuning on demonstrations or chat files."""

from pathlib import Path

from orchestrator.config import SftConfig
from orchestrator.dialogue_writer import DialogueWriter
from orchestrator.dialogues import ChatFile, Demonstrations
from orchestrator.run import Run
from orchestrator.sft_data import SftData
from orchestrator.supervised import sequence_batches, train_supervised
from rollout.renderer import Renderer, load_tokenizer
from rollout.thought import ThoughtTags


async def run_sft(run: Run, config: SftConfig, name: str) -> Path:
    """Train for `config.steps` as the instance `name`; returns the checkpoint of the last step."""
    return await train_supervised(
        run,
        stage=name,
        optim=config.optim,
        steps=config.steps,
        checkpoint_every=config.checkpoint_every,
        batch=sequence_batches(run, _data(run, config, name).batch),
    )


def _data(run: Run, config: SftConfig, name: str) -> SftData:
    thought, seed = run.config.rollout.thought, run.seed(name)
    if config.data is None:
        source = Demonstrations(run.mixture(name, config.shares)).dialogue
    else:
        chat = ChatFile(Path(config.data), on_error=config.on_error, seed=seed)
        if chat.skipped:
            run.progress.note(f"{name}: {chat.skipped} malformed rows of {config.data} were skipped")
        source = chat.dialogue
    tokenizer = load_tokenizer(run.model_dir)
    writer = DialogueWriter(
        Renderer(tokenizer, thought),
        ThoughtTags.find(tokenizer, closing=thought.closing),
        thought,
        train_closing=config.thoughts.train_closing,
    )
    return SftData(
        source,
        writer,
        config.thoughts,
        batch_size=config.batch_size,
        max_tokens=run.config.rollout.limits.total_tokens,
        seed=seed,
    )

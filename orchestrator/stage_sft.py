"""`sft`: supervised fine-tuning on demonstrations or chat files."""

import asyncio
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from learner.model_files import longest_sequence
from orchestrator.chat_file import ChatFile
from orchestrator.config import Config
from orchestrator.dialogue_writer import DialogueWriter
from orchestrator.dialogues import Demonstrations
from orchestrator.row_intake import RowIntake
from orchestrator.run import Run
from orchestrator.sft_data import SftData
from orchestrator.supervised import sequence_batches, tell_data, train_supervised
from rollout.renderer import load_tokenizer

STAGE = "sft"


async def run_sft(run: Run) -> Path:
    """Train for `sft.steps`; returns the checkpoint of the last step."""
    config = run.config.sft
    data = await run.stop.wait_or(asyncio.to_thread(_data, run))
    return await train_supervised(
        run,
        stage=STAGE,
        optim=config.optim,
        steps=config.steps,
        checkpoint_every=config.checkpoint_every,
        batch=sequence_batches(run, data.batch),
        sequences=config.batch_size,
    )


def read_chats(config: Config, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int | None) -> ChatFile:
    """The rows of `sft.data` for a model with this tokenizer, each written once.

    Raises `FileNotFoundError`, or `ValueError` with file and line for a row that can't be trained on.
    """
    sft = config.sft
    assert sft.data is not None
    intake = RowIntake(
        DialogueWriter.of(tokenizer, config.rollout.thought), max_tokens=max_tokens, setting="sft.max_tokens"
    )
    return ChatFile(Path(sft.data), intake, on_error=sft.on_error, rounds=sft.thoughts.rounds, seed=config.seed)


def _data(run: Run) -> SftData:
    config, sft, tokenizer = run.config, run.config.sft, load_tokenizer(run.model_dir)
    max_tokens = sft.max_tokens or longest_sequence(run.model_dir)
    if sft.data is None:
        source = Demonstrations(run.mixture(sft.shares)).dialogue
    else:
        chats = read_chats(config, tokenizer, max_tokens=max_tokens)
        tell_data(run, STAGE, Path(sft.data), chats.counts, drawn=sft.steps * sft.batch_size)
        source = chats.dialogue
    return SftData(
        source,
        DialogueWriter.of(tokenizer, config.rollout.thought, train_closing=sft.thoughts.train_closing),
        sft.modes,
        batch_size=sft.batch_size,
        max_tokens=max_tokens,
        on_error=sft.on_error,
        seed=config.seed,
    )

"""`sft`: supervised fine-tuning on demonstrations or chat files."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from learner.models.loading import longest_sequence
from orchestrator.data.chat_data import Demonstrations, DialogueTokenizer
from orchestrator.data.chat_file import ChatFile
from orchestrator.data.row_intake import RowIntake, limit_name
from orchestrator.data.sft import SftData
from orchestrator.deadline import beside
from orchestrator.settings.supervised import SftConfig
from orchestrator.stages.session import Run
from orchestrator.stages.supervised_loop import sequence_batches, tell_data, train_supervised
from rollout.budget.config import ThoughtConfig
from rollout.tokenizer import load_tokenizer


async def run_sft(run: Run, config: SftConfig, name: str) -> Path:
    """Train for `config.steps` as the instance `name`; returns the checkpoint of the last step."""
    data = await run.stop.wait_or(beside(_data, run, config, name))
    return await train_supervised(
        run,
        stage=name,
        optim=config.optim,
        steps=config.steps,
        checkpoint_every=config.checkpoint_every,
        batch=sequence_batches(run, data.batch),
        sequences=config.batch_size,
    )


def read_chats(
    config: SftConfig,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    thought: ThoughtConfig,
    *,
    max_tokens: int | None,
    seed: int,
) -> ChatFile:
    """The rows of `data` for a model with this tokenizer, each tokenised once.

    Raises `FileNotFoundError`, or `ValueError` with file and line for a row that can't be trained on.
    """
    assert config.data is not None
    setting = limit_name(name, config.max_tokens)
    intake = RowIntake(DialogueTokenizer.of(tokenizer, thought), max_tokens=max_tokens, setting=setting)
    return ChatFile(Path(config.data), intake, on_error=config.on_error, rounds=config.thoughts.rounds, seed=seed)


def _data(run: Run, config: SftConfig, name: str) -> SftData:
    tokenizer, thought, seed = load_tokenizer(run.model_dir), run.config.rollout.thought, run.seed(name)
    max_tokens = config.max_tokens or longest_sequence(run.model_dir)
    if config.data is None:
        source = Demonstrations(run.mixture(name, config.shares)).dialogue
    else:
        chats = read_chats(config, name, tokenizer, thought, max_tokens=max_tokens, seed=seed)
        tell_data(run, name, Path(config.data), chats.counts, drawn=config.steps * config.batch_size)
        source = chats.dialogue
    return SftData(
        source,
        DialogueTokenizer.of(tokenizer, thought, train_closing=config.thoughts.train_closing),
        config.modes,
        name=name,
        batch_size=config.batch_size,
        max_tokens=max_tokens,
        setting=limit_name(name, config.max_tokens),
        on_error=config.on_error,
        seed=seed,
    )

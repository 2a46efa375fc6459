"""`sft`: supervised fine-tuning on demonstrations or chat files."""

from collections.abc import Callable
from pathlib import Path

from temper.learner.models.shape import longest_sequence
from temper.orchestrator.config.supervised import SftConfig
from temper.orchestrator.data.chat_data import Demonstrations, Dialogue, DialogueTokenizer
from temper.orchestrator.data.chat_file import chat_rows
from temper.orchestrator.data.row_intake import RowIntake, ShuffledRows, limit_name
from temper.orchestrator.data.sft import SftData
from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.stage import StageInstance, StartCheck
from temper.orchestrator.stages.supervised_loop import log_data, row_intake, sequence_batches, train_supervised
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.tokenizer import load_tokenizer


async def run_sft(run: Run, config: SftConfig, instance: StageInstance) -> Path:
    data = await run.stop.wait_or(in_thread(_data, run, config, instance))
    batch = sequence_batches(run, data.batch)
    return await train_supervised(run, instance.name, config, batch, sequences=config.batch_size)


def read_chats(config: SftConfig, intake: RowIntake, *, seed: int) -> ShuffledRows[Dialogue]:
    """Read the rows of `data`, or the first streamed ones. Raise `FileNotFoundError`, or `ValueError` for a bad row."""
    assert config.data is not None
    return chat_rows(config.data, intake, on_error=config.on_error, seed=seed)


def _data(run: Run, config: SftConfig, instance: StageInstance) -> SftData:
    name, seed = instance.name, instance.seed(run.config.seed)
    tokenizer, thinking = load_tokenizer(run.model_dir), run.config.rollout.thinking
    max_tokens = config.max_tokens or longest_sequence(run.model_dir)
    source: Callable[[int], Dialogue]
    if config.data is None:
        source = Demonstrations(instance.mixture(run.config, config.shares), run.config.environments).dialogue
    else:
        chats = read_chats(config, row_intake(config, name, tokenizer, thinking, longest=max_tokens), seed=seed)
        log_data(run, name, config.data.name, chats.counts, drawn=config.steps * config.batch_size)
        source = chats.item
    left_out = Renderer(tokenizer).can_skip_thinking
    if config.usual and not left_out:
        run.progress.note(f"{name}: the chat template cannot omit reasoning, so every demonstration has its reasoning")
    return SftData(
        source,
        DialogueTokenizer.of(tokenizer, thinking, train_closing=config.reasoning.train_closing),
        config.modes(left_out=left_out),
        name=name,
        batch_size=config.batch_size,
        max_tokens=max_tokens,
        setting=limit_name(name, config.max_tokens),
        on_error=config.on_error,
        seed=seed,
    )


def check_sft(config: SftConfig, start: StartCheck) -> None:
    if config.data is None:
        Demonstrations(start.training_tasks(config.shares), start.config.environments)
        return
    intake = row_intake(config, start.name, start.tokenizer, start.config.rollout.thinking, longest=start.longest)
    read_chats(config, intake, seed=start.config.seed)

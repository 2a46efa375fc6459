"""`dpo`: direct preference optimisation on pairs of answers, from a file or from the model itself.

Without a file it is semi-on-policy: the first model of the stage samples the answers once.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from temper.learner.batches.pairs import Pair
from temper.learner.models.shape import longest_sequence
from temper.orchestrator.config.supervised import DpoConfig
from temper.orchestrator.data.chat_data import DialogueTokenizer
from temper.orchestrator.data.preference_rows import Preference, preference_rows
from temper.orchestrator.data.row_intake import EpochBatches, RowIntake, ShuffledRows, positions
from temper.orchestrator.data.sampled_answers import pair_lines, read_pairs
from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.stage import StageInstance, StartCheck
from temper.orchestrator.stages.supervised_loop import (
    log_data,
    row_intake,
    sample_once,
    train_supervised,
)
from temper.rollout.tokenizer import load_tokenizer


async def run_dpo(run: Run, config: DpoConfig, instance: StageInstance) -> Path:
    """Sample if necessary, then train for `config.steps`. Return the last checkpoint."""
    pairs = await _pairs(run, config, instance)
    builder = cache(run.trainer.batch_builder)  # called after the learner has measured its passes
    return await train_supervised(
        run,
        instance.name,
        config,
        lambda step: builder().build_from_pairs(pairs(step)),
        sequences=2 * config.batch_size,
        loss=config.loss,
    )


def read_pairs_of_data(config: DpoConfig, intake: RowIntake, *, seed: int) -> ShuffledRows[Preference]:
    """Read the rows of `data`, or the first streamed ones. Raise `FileNotFoundError`, or `ValueError` for a bad row."""
    assert config.data is not None
    return preference_rows(config.data, intake, on_error=config.on_error, seed=f"{seed}/dpo")


async def _pairs(run: Run, config: DpoConfig, instance: StageInstance) -> Callable[[int], list[Pair]]:
    tokenizer, thinking = load_tokenizer(run.model_dir), run.config.rollout.thinking
    max_tokens = config.max_tokens or longest_sequence(run.model_dir)
    seed, drawn = instance.seed(run.config.seed), config.steps * config.batch_size
    if config.data is None:
        wanted = "pairs of a right and a wrong answer"
        mixture = await in_thread(instance.mixture, run.config, config.shares)
        path = await sample_once(run, config, mixture, instance=instance, lines=pair_lines, wanted=wanted)
        own, counts = await in_thread(partial(read_pairs, path, max_tokens=max_tokens))
        log_data(run, instance.name, str(path), counts, drawn=drawn)
        return EpochBatches(len(own), lambda at: own[at.item], batch_size=config.batch_size, seed=f"{seed}/dpo").batch
    by = DialogueTokenizer.of(tokenizer, thinking)
    intake = row_intake(config, instance.name, tokenizer, thinking, longest=max_tokens)
    rows = await run.stop.wait_or(in_thread(partial(read_pairs_of_data, config, intake, seed=seed)))
    log_data(run, instance.name, config.data.name, rows.counts, drawn=drawn)
    return lambda step: [rows.item(index).pair(by) for index in positions(step, config.batch_size)]


def check_dpo(config: DpoConfig, start: StartCheck) -> None:
    if config.data is None:
        start.training_tasks(config.shares)
        return
    intake = row_intake(config, start.name, start.tokenizer, start.config.rollout.thinking, longest=start.longest)
    read_pairs_of_data(config, intake, seed=start.config.seed)

"""`dpo`: direct preference optimisation on pairs of answers, from a file or from the model itself.

Without a file it is semi-on-policy: the first model of the stage samples the answers once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

from temper.envs.core.setting import immutable
from temper.envs.data.config import DataConfig, OnError
from temper.learner.batches.pairs import Pair
from temper.learner.config import OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.models.shape import longest_sequence
from temper.orchestrator.config.fitting import fit_sampled_data
from temper.orchestrator.config.supervised import SampledDataConfig
from temper.orchestrator.data.chat_data import DialogueTokenizer
from temper.orchestrator.data.preference_rows import Preference, preference_rows
from temper.orchestrator.data.row_intake import EpochBatches, RowIntake, ShuffledRows, positions
from temper.orchestrator.data.sampled_answers import pair_lines, read_pairs
from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.stage import TICKETS, Role, Stage, StageInstance, StartCheck
from temper.orchestrator.stages.supervised_loop import (
    log_data,
    row_intake,
    sample_once,
    train_supervised,
)
from temper.rollout.sampling import PLAIN
from temper.rollout.tokenizer import load_tokenizer


@dataclass(frozen=True, kw_only=True)
class DpoConfig(SampledDataConfig):
    """Direct preference optimisation: the chosen answer of a pair against the rejected one."""

    stage: ClassVar[str] = "dpo"

    data: DataConfig | None = immutable(None)
    """Rows with `messages`, `chosen` and `rejected`, as texts or as dialogues with the same beginning. null pairs the model's
    own right and wrong answers, each in at most one pair."""
    on_error: OnError = immutable("raise")
    """For a malformed or too long row: raise, or skip (counted and reported)."""
    beta: float = immutable(0.1)
    """Strength of the pull to the first model of the stage. A smaller value allows larger changes."""
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(learning_rate=1e-6))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 2:
            raise ValueError(f"dpo.samples={self.samples} must be at least 2: a pair needs a right and a wrong answer")
        if self.data is not None and self.sampling != PLAIN:
            raise ValueError(f"dpo.sampling has no effect with dpo.data={self.data.name}; remove one of them")
        if not self.beta > 0:
            raise ValueError(f"dpo.beta={self.beta} must be above 0")

    @property
    def loss(self) -> LossConfig:
        return LossConfig(objective="dpo", beta=self.beta)


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


def _check(config: DpoConfig, start: StartCheck) -> None:
    if config.data is None:
        start.training_tasks(config.shares)
        return
    intake = row_intake(config, start.name, start.tokenizer, start.config.rollout.thinking, longest=start.longest)
    read_pairs_of_data(config, intake, seed=start.config.seed)


STAGE = Stage(
    name="dpo",
    role=Role.TRAIN,
    settings=DpoConfig,
    run=run_dpo,
    first_ticket=4 * TICKETS,
    plays=lambda config: config.data is None,
    data=lambda config: config.data,
    fits=fit_sampled_data,
    check=_check,
)

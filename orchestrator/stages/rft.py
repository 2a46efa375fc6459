"""`rft`: supervised fine-tuning on the model's own right answers, a share of their thoughts cut at a budget.

Semi-on-policy: the answers are sampled once, from the model that the stage starts with.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

from temper.envs.core.setting import immutable
from temper.envs.core.thinking_mode import ThinkingMix
from temper.learner.models.shape import longest_sequence
from temper.orchestrator.config.fitting import fit_sampled_data
from temper.orchestrator.config.supervised import SampledDataConfig
from temper.orchestrator.data.sampled_answers import RejectionSampledData, answer_lines, read_answers
from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.stage import TICKETS, Role, Stage, StageInstance
from temper.orchestrator.stages.supervised_loop import (
    log_data,
    sample_once,
    sequence_batches,
    train_supervised,
)
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.tokenizer import load_tokenizer


@dataclass(frozen=True, kw_only=True)
class RftConfig(SampledDataConfig):
    """Supervised fine-tuning on the model's own right, well-formed answers."""

    stage: ClassVar[str] = "rft"

    samples: int = immutable(4)
    """Answers to each task."""
    thinking: ThinkingMix = field(default_factory=lambda: ThinkingMix(budget=0.12))
    """Share of the answers whose thoughts are cut; without `budgets` or `budget_range` anywhere."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.thinking.no_thinking or self.thinking.low_effort:
            raise ValueError("rft.thinking cuts thoughts at budgets; its no_thinking and low_effort must be 0")


async def run_rft(run: Run, config: RftConfig, instance: StageInstance) -> Path:
    """Sample if that is not done, then train for `config.steps`; return the checkpoint of the last step."""
    mixture = await in_thread(instance.mixture, run.config, config.shares)
    path = await sample_once(run, config, mixture, instance=instance, lines=answer_lines, wanted="right answers")
    tokenizer, thinking = load_tokenizer(run.model_dir), run.config.rollout.thinking
    max_tokens = config.max_tokens or longest_sequence(run.model_dir)
    kept, counts = await in_thread(partial(read_answers, path, max_tokens=max_tokens))
    log_data(run, instance.name, str(path), counts, drawn=config.steps * config.batch_size)
    data = RejectionSampledData(
        kept,
        mixture,
        Renderer(tokenizer, thinking),
        ThinkingTags.find(tokenizer, closing=thinking.closing),
        thinking=config.thinking,
        thinking_config=thinking,
        batch_size=config.batch_size,
        max_tokens=max_tokens,
        seed=instance.seed(run.config.seed),
    )
    batch = sequence_batches(run, data.batch)
    return await train_supervised(run, instance.name, config, batch, sequences=config.batch_size)


STAGE = Stage(
    name="rft",
    role=Role.TRAIN,
    settings=RftConfig,
    run=run_rft,
    first_ticket=2 * TICKETS,
    plays=lambda config: True,
    limits_thinking=lambda config: config.thinking.budget > 0,
    fits=fit_sampled_data,
    check=lambda config, start: start.training_tasks(config.shares),
)

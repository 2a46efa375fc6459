"""`rft`: rejection-sampling fine-tuning on the model's own right answers. Some are cut at a thinking budget.

It is semi-on-policy: the first model of the stage samples the answers once.
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
    """Share of the answers whose reasoning is cut, at any token without `budgets` or `budget_range`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.thinking.no_thinking or self.thinking.low_effort:
            raise ValueError("rft.thinking only cuts reasoning at budgets; set its no_thinking and low_effort to 0")


async def run_rft(run: Run, config: RftConfig, instance: StageInstance) -> Path:
    """Sample if necessary, then train for `config.steps`. Return the last checkpoint."""
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

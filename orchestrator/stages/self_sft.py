"""`self_sft`: supervised fine-tuning on the model's own right answers, a share of their thoughts cut at a budget.

Semi-on-policy: the answers are sampled once, from the model that the stage starts with.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from temper.envs.core.bounds import fraction
from temper.envs.core.setting import identity, running, scheduled
from temper.envs.core.thinking_mode import ThinkingMix
from temper.learner.config import OptimConfig
from temper.learner.models.shape import longest_sequence
from temper.orchestrator.config.fitting import fit_own_answers, lengths, require_at_least_1
from temper.orchestrator.data.self_answers import RejectionSampledData, answer_lines, read_answers
from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.stage import TICKETS, Role, Stage, StageInstance
from temper.orchestrator.stages.supervised_loop import (
    require_own_answers,
    sample_once,
    sequence_batches,
    tell_data,
    train_supervised,
)
from temper.rollout.budget.rule import ThoughtTags
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.tokenizer import load_tokenizer


@dataclass(frozen=True, kw_only=True)
class SelfSftConfig:
    """Supervised fine-tuning on the model's own right answers."""

    tasks: int = identity(512)
    """Training tasks that are answered."""
    samples: int = identity(4)
    """Answers to each task; the right, well-formed ones are kept."""
    sampling: Sampling = identity(PLAIN)
    """How they are drawn; all but stop."""
    shares: dict[str, float] = identity({}, unit="share")
    """Shares of environments among these tasks, where they differ from `envs.NAME.share`."""
    thinking: ThinkingMix = field(default_factory=lambda: ThinkingMix(budget=0.12))
    """Share of the answers whose thoughts are cut; without `budgets` or `budget_range` anywhere."""
    max_tokens: int | None = identity(None, unit="tokens")
    """Longest answer with its prompt, in tokens; longer ones are left out and counted. Null: the model's positions."""
    steps: int = scheduled(100, unit="steps")
    """Optimiser steps."""
    batch_size: int = identity(32)
    """Answers in a step."""
    checkpoint_every: int = running(200, unit="steps")
    """Steps between checkpoints; the last step always has one."""
    timeout_s: float = running(600.0, unit="seconds")
    """Deadline for sampling, in seconds."""
    max_failures: float = running(0.5, unit="share")
    """Highest share of failed episodes of one environment over its last 64, or over all; above it the stage ends."""
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        fraction("self_sft.max_failures", self.max_failures)
        require_at_least_1("self_sft", lengths(self) | {"tasks": self.tasks, "samples": self.samples})
        require_own_answers("self_sft", self.sampling, samples=self.samples)
        if self.thinking.no_thought or self.thinking.low_effort:
            raise ValueError("self_sft.thinking cuts thoughts at budgets; its no_thought and low_effort must be 0")


async def run_self_sft(run: Run, config: SelfSftConfig, instance: StageInstance) -> Path:
    """Sample if that is not done, then train for `config.steps`; return the checkpoint of the last step."""
    mixture = await in_thread(instance.mixture, run.config, config.shares)
    path = await sample_once(run, config, mixture, instance=instance, lines=answer_lines, wanted="right answers")
    tokenizer, thought = load_tokenizer(run.model_dir), run.config.rollout.thought
    max_tokens = config.max_tokens or longest_sequence(run.model_dir)
    kept, counts = await in_thread(partial(read_answers, path, max_tokens=max_tokens))
    tell_data(run, instance.name, str(path), counts, drawn=config.steps * config.batch_size)
    data = RejectionSampledData(
        kept,
        mixture,
        Renderer(tokenizer, thought),
        ThoughtTags.find(tokenizer, closing=thought.closing),
        thinking=config.thinking,
        thought=thought,
        batch_size=config.batch_size,
        max_tokens=max_tokens,
        seed=instance.seed(run.config.seed),
    )
    batch = sequence_batches(run, data.batch)
    return await train_supervised(run, instance.name, config, batch, sequences=config.batch_size)


STAGE = Stage(
    name="self_sft",
    role=Role.TRAIN,
    settings=SelfSftConfig,
    run=run_self_sft,
    first_ticket=2 * TICKETS,
    plays=lambda config: True,
    limits_thoughts=lambda config: config.thinking.budget > 0,
    fits=fit_own_answers,
    check=lambda config, start: start.training_tasks(config.shares),
)

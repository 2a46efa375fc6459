"""Settings that supervised stages share, and settings of stages on sampled answers."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from temper.envs.core.bounds import fraction, positive
from temper.envs.core.setting import free, immutable, scheduled
from temper.learner.config import OptimConfig
from temper.rollout.sampling import PLAIN, Sampling


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig:
    """A stage that trains on samples. `stage` is its name, also in messages."""

    stage: ClassVar[str]

    steps: int = scheduled(100, unit="steps")
    """Optimiser steps."""
    batch_size: int = immutable(32)
    """Samples of a step: dialogues, answers, or pairs of answers."""
    max_tokens: int | None = immutable(None, unit="tokens")
    """Longest sample with its prompt, in tokens. Longer sampled answers are filtered and counted, never truncated. null: the
    model's max_position_embeddings."""
    checkpoint_every: int = free(200, unit="steps")
    """Steps between checkpoints. The last step always has one."""
    shares: dict[str, float] = scheduled({}, unit="share")
    """Shares of environments in this stage, instead of `envs.NAME.share`."""
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        self._require_at_least_1(("steps", "batch_size", "checkpoint_every", "max_tokens"))

    def _require_at_least_1(self, names: Iterable[str]) -> None:
        for name in names:
            count = vars(self)[name]
            if count is not None and count < 1:
                or_null = ", or null" if name == "max_tokens" else ""
                raise ValueError(f"{self.stage}.{name}={count} must be at least 1{or_null}")


@dataclass(frozen=True, kw_only=True)
class SampledDataConfig(SupervisedConfig):
    """A supervised stage on answers that the model samples once, before the first step."""

    tasks: int = immutable(512)
    """Training tasks to answer. Unused with data."""
    samples: int = immutable(8)
    """Answers to each task."""
    sampling: Sampling = immutable(PLAIN)
    """Sampling of these answers, except stop."""
    shares: dict[str, float] = immutable({}, unit="share")
    """Shares of environments among these tasks, instead of `envs.NAME.share`."""
    timeout_s: float = free(600.0, unit="seconds")
    """Deadline for sampling, in seconds."""
    max_failures: float = free(0.5, unit="share")
    """Highest share of failed episodes of one environment over its last 64, or over all. Above it the stage ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(f"{self.stage}.timeout_s", self.timeout_s)
        fraction(f"{self.stage}.max_failures", self.max_failures)
        self._require_at_least_1(("tasks", "samples"))
        stage, sampling = self.stage, self.sampling  # sampling may be truncated, since its distribution is not trained
        sampling.require_varied(self.samples, setting=f"{stage}.sampling", count=f"{stage}.samples")
        if sampling.stop:
            raise ValueError(
                f"{stage}.sampling.stop={sampling.stop}: training on answers that end with such a text would unlearn the "
                f"end of the turn; remove it"
            )

"""The settings that supervised stages have in common, and those of stages on the model's own answers."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from temper.envs.core.bounds import fraction
from temper.envs.core.setting import free, immutable, scheduled
from temper.learner.config import OptimConfig
from temper.rollout.sampling import PLAIN, Sampling


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig:
    """A stage that trains on given samples. `stage` is its name, also in messages."""

    stage: ClassVar[str]

    steps: int = scheduled(100, unit="steps")
    """Optimiser steps."""
    batch_size: int = immutable(32)
    """Samples in a step: dialogues, answers, or pairs of answers."""
    max_tokens: int | None = immutable(None, unit="tokens")
    """Longest sample with its prompt, in tokens; nothing is cut, and own answers over it are left out and counted. Null: the
    positions that the model's configuration names."""
    checkpoint_every: int = free(200, unit="steps")
    """Steps between checkpoints; the last step always has one."""
    shares: dict[str, float] = scheduled({}, unit="share")
    """Shares of environments in this stage, where they differ from `envs.NAME.share`."""
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
    """A supervised stage on answers that the model samples once, before its first step."""

    tasks: int = immutable(512)
    """Training tasks that are answered, where no rows are given."""
    samples: int = immutable(8)
    """Answers to each task."""
    sampling: Sampling = immutable(PLAIN)
    """How they are drawn; all but stop."""
    shares: dict[str, float] = immutable({}, unit="share")
    """Shares of environments among these tasks, where they differ from `envs.NAME.share`."""
    timeout_s: float = free(600.0, unit="seconds")
    """Deadline for sampling, in seconds."""
    max_failures: float = free(0.5, unit="share")
    """Highest share of failed episodes of one environment over its last 64, or over all; above it the stage ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(f"{self.stage}.max_failures", self.max_failures)
        self._require_at_least_1(("tasks", "samples"))
        stage, sampling = self.stage, self.sampling  # its distribution is not trained on, so it may be truncated
        if sampling.greedy and self.samples > 1:
            raise ValueError(
                f"{stage}.sampling.temperature=0 with {stage}.samples={self.samples}: all answers to a task would be the same; "
                f"set the temperature above 0"
            )
        if sampling.stop:
            raise ValueError(
                f"{stage}.sampling.stop={sampling.stop}: the answers that are trained on would end with such a text, and not "
                f"with the end of the turn, which the model would unlearn; leave it out"
            )

"""The settings of the supervised stages: what they train on, for how long, and what they sample before."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from envs.core.bounds import fraction
from envs.core.jsonl import OnError
from envs.core.setting import identity, running, scheduled
from envs.core.thinking_mode import ThinkingMix
from learner.config import OptimConfig
from learner.losses.config import LossConfig
from orchestrator.data.sft import DEMONSTRATED, SftDataConfig


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """Supervised fine-tuning on demonstrations, or on chat files."""

    steps: int = scheduled(300)
    """Optimiser steps."""
    batch_size: int = identity(64)
    """Samples in a step."""
    data: str | None = identity(None)
    """A JSONL file with `messages` in each row; null takes the environments' own demonstrations."""
    on_error: OnError = identity("raise")
    """What a malformed or too long row does, and a too long demonstration: raise, or skip (counted and reported)."""
    max_tokens: int | None = identity(None)
    """Longest sample, in tokens; nothing is cut. Null: the positions that the model's configuration names."""
    shares: dict[str, float] = scheduled({})
    """Shares of environments in this stage, where they differ from `envs.ID.share`."""
    thoughts: SftDataConfig = field(default_factory=SftDataConfig)
    """What is done to the thoughts."""
    checkpoint_every: int = running(200)
    """Steps between checkpoints; the last step always has one."""
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        _require_at_least_1("sft", _lengths(self))

    @property
    def modes(self) -> SftDataConfig:
        """What is done to the thoughts of the stage's samples."""
        if self.data is not None or self.thoughts.thinking is not None:
            return self.thoughts
        return replace(self.thoughts, thinking=DEMONSTRATED)


@dataclass(frozen=True, kw_only=True)
class SelfSftConfig:
    """Supervised fine-tuning on the model's own right answers."""

    tasks: int = identity(512)
    """Training tasks that are answered."""
    samples: int = identity(4)
    """Answers to each task; the right, well-formed ones are kept."""
    shares: dict[str, float] = identity({})
    """Shares of environments among these tasks, where they differ from `envs.ID.share`."""
    thinking: ThinkingMix = field(default_factory=lambda: ThinkingMix(budget=0.12))
    """Share of the answers whose thoughts are cut; without `budgets` or `budget_range` anywhere."""
    max_tokens: int | None = identity(None)
    """Longest answer with its prompt, in tokens; longer ones are left out and counted. Null: the model's positions."""
    steps: int = scheduled(100)
    """Optimiser steps."""
    batch_size: int = identity(32)
    """Answers in a step."""
    checkpoint_every: int = running(200)
    """Steps between checkpoints; the last step always has one."""
    timeout_s: float = running(600.0)
    """Deadline for sampling, in seconds."""
    max_failures: float = running(0.5)
    """Highest share of failed episodes of one environment over its last 64, or over all; above it the stage ends."""
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        fraction("self_sft.max_failures", self.max_failures)
        _require_at_least_1("self_sft", _lengths(self) | {"tasks": self.tasks, "samples": self.samples})
        if self.thinking.no_thought or self.thinking.low_effort:
            raise ValueError("self_sft.thinking cuts thoughts at budgets; its no_thought and low_effort must be 0")


@dataclass(frozen=True, kw_only=True)
class DpoConfig:
    """Direct preference optimisation: the preferred answer of a pair against the other one."""

    data: str | None = identity(None)
    """A JSONL file of rows with `messages`, `chosen` and `rejected`; null pairs the model's own right and wrong answers."""
    on_error: OnError = identity("raise")
    """What a malformed or too long row does: raise, or skip (counted and reported)."""
    max_tokens: int | None = identity(None)
    """Longest answer with its prompt, in tokens; nothing is cut, and own answers over it are left out and counted. Null: the
    positions that the model's configuration names."""
    tasks: int = identity(512)
    """Training tasks that are answered, without `data`."""
    samples: int = identity(8)
    """Answers to each of them; a right and a wrong answer to the same task are a pair, each answer in one pair at most."""
    shares: dict[str, float] = identity({})
    """Shares of environments among these tasks, where they differ from `envs.ID.share`."""
    timeout_s: float = running(600.0)
    """Deadline for sampling, in seconds."""
    max_failures: float = running(0.5)
    """Highest share of failed episodes of one environment over its last 64, or over all; above it the stage ends."""
    beta: float = identity(0.1)
    """How dearly an answer pays for leaving the model that the stage began with; the smaller, the further it may go."""
    steps: int = scheduled(100)
    """Optimiser steps."""
    batch_size: int = identity(32)
    """Pairs in a step."""
    checkpoint_every: int = running(200)
    """Steps between checkpoints; the last step always has one."""
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(learning_rate=1e-6))

    def __post_init__(self) -> None:
        fraction("dpo.max_failures", self.max_failures)
        _require_at_least_1("dpo", _lengths(self) | {"tasks": self.tasks})
        if self.samples < 2:
            raise ValueError(f"dpo.samples={self.samples} must be at least 2: a pair needs a right and a wrong answer")
        if not self.beta > 0:
            raise ValueError(f"dpo.beta={self.beta} must be above 0")

    @property
    def loss(self) -> LossConfig:
        """What the learner minimises."""
        return LossConfig(objective="dpo", beta=self.beta)


def _lengths(config: SftConfig | SelfSftConfig | DpoConfig) -> dict[str, int | None]:
    """Return what every supervised stage counts: null is no limit."""
    return {
        "steps": config.steps,
        "batch_size": config.batch_size,
        "checkpoint_every": config.checkpoint_every,
        "max_tokens": config.max_tokens,
    }


def _require_at_least_1(stage: str, counts: Mapping[str, int | None]) -> None:
    """Raise `ValueError` for a count below 1."""
    for name, count in counts.items():
        if count is not None and count < 1:
            or_null = ", or null" if name == "max_tokens" else ""
            raise ValueError(f"{stage}.{name}={count} must be at least 1{or_null}")

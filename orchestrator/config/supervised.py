"""Settings of the supervised stages: `sft`, and `rft` and `dpo` on sampled answers."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from temper.envs.core.bounds import require_fraction, require_positive
from temper.envs.core.setting import free, immutable, scheduled
from temper.envs.core.thinking_mode import ThinkingMix
from temper.envs.data.config import DataConfig, OnError
from temper.learner.config import OptimConfig
from temper.learner.losses.config import LossConfig
from temper.rollout.sampling import PLAIN, Sampling

DEMONSTRATED = ThinkingMix(budget=0.03, no_thinking=0.1)
"""The default modes of demonstrations."""


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
        require_positive(f"{self.stage}.timeout_s", self.timeout_s)
        require_fraction(f"{self.stage}.max_failures", self.max_failures)
        self._require_at_least_1(("tasks", "samples"))
        stage, sampling = self.stage, self.sampling  # sampling may be truncated, since its distribution is not trained
        sampling.require_varied(self.samples, setting=f"{stage}.sampling", count=f"{stage}.samples")
        if sampling.stop:
            raise ValueError(
                f"{stage}.sampling.stop={sampling.stop}: training on answers that end with such a text would unlearn the "
                f"end of the turn; remove it"
            )


@dataclass(frozen=True, kw_only=True)
class SftDataConfig:
    """Changes of the reasoning in supervised data, so that the model knows every mode."""

    thinking: ThinkingMix | None = scheduled(None)
    """Shares of samples with the reasoning cut at a budget, with low effort, and without reasoning. Without `budgets` or
    `budget_range` it is cut at any token. null: 0.03 of the demonstrations are cut and 0.1 have no reasoning (none if the
    chat template cannot omit it), and the rows of `sft.data` are unchanged."""
    train_closing: bool = immutable(False)
    """Whether the forced end of cut reasoning is trained, so that the model learns to stop early."""
    cut_to_answer: bool = immutable(False)
    """Whether reasoning under a budget stops early without a forced end, followed by the dialogue's last answer: a habit of
    answering too soon, which reinforcement learning can unlearn."""
    low_effort_keep: float = immutable(0.5, unit="share")
    """Share of the words of reasoning that a low-effort sample keeps."""

    def __post_init__(self) -> None:
        if not 0 < self.low_effort_keep <= 1:
            raise ValueError(f"sft.reasoning.low_effort_keep={self.low_effort_keep} must be above 0 and at most 1")


@dataclass(frozen=True, kw_only=True)
class SftConfig(SupervisedConfig):
    """Supervised fine-tuning on demonstrations, or on chat files."""

    stage: ClassVar[str] = "sft"

    steps: int = scheduled(300, unit="steps")
    """Optimiser steps."""
    batch_size: int = immutable(64)
    """Samples in a step."""
    data: DataConfig | None = immutable(None)
    """Rows with `messages`. null uses the environments' demonstrations."""
    on_error: OnError = immutable("raise")
    """For a malformed or too long row, or a too long demonstration: raise, or skip (counted and reported)."""
    reasoning: SftDataConfig = field(default_factory=SftDataConfig)
    """Changes of the samples' reasoning."""

    @property
    def usual(self) -> bool:
        """Whether the demonstrations have the default modes."""
        return self.data is None and self.reasoning.thinking is None

    def modes(self, *, left_out: bool) -> SftDataConfig:
        """Return the modes of the samples. `left_out` is whether the model supports samples without reasoning."""
        if not self.usual:
            return self.reasoning
        return replace(self.reasoning, thinking=DEMONSTRATED if left_out else replace(DEMONSTRATED, no_thinking=0.0))


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

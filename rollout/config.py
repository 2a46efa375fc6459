"""Settings of rollout workers and episodes. Engines and thinking have their own, in `engines` and `budget`."""

from dataclasses import dataclass, field

from temper.envs.core.bounds import require_not_negative, require_positive
from temper.envs.core.setting import free, scheduled
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.engines.config import EngineConfig


@dataclass(frozen=True, kw_only=True)
class EpisodeLimits:
    """Limits of an episode."""

    turn_tokens: int = scheduled(128, unit="tokens")
    """Most tokens sampled in one turn."""
    total_tokens: int = scheduled(768, unit="tokens")
    """Longest sequence of an episode, prompt and observations included."""
    turns: int | None = scheduled(None)
    """Most turns in an episode of any environment; null uses only the environments' limits (`envs.NAME.max_turns`)."""
    timeout_s: float = free(120.0, unit="seconds")
    """Deadline of an episode, in seconds. Waiting for the engine, threads and graders does not count."""

    def __post_init__(self) -> None:
        for name in ("turn_tokens", "total_tokens", "timeout_s"):
            require_positive(f"rollout.limits.{name}", vars(self)[name])
        if self.turns is not None:
            require_positive("rollout.limits.turns", self.turns)


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How trajectories are made."""

    workers: int = free(1)
    """Rollout workers, each with its own engine."""
    retries: int = free(1)
    """Retries of an episode after a failure outside the model, on another worker if possible."""
    programs: int = free(4)
    """Model programs that a worker runs at once. The others wait, with their episodes' clocks stopped."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    thinking: ThinkingConfig = field(default_factory=ThinkingConfig)

    @property
    def processes(self) -> int:
        """Engine processes of all workers."""
        return self.workers * self.engine.processes

    def __post_init__(self) -> None:
        require_positive("rollout.workers", self.workers)
        require_positive("rollout.programs", self.programs)
        require_not_negative("rollout.retries", self.retries)
        if self.limits.total_tokens > self.engine.max_model_len:
            raise ValueError(
                f"rollout.limits.total_tokens={self.limits.total_tokens} exceeds "
                f"rollout.engine.max_model_len={self.engine.max_model_len}; raise the latter, or lower the former"
            )

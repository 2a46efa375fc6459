"""Settings of rollout workers and episodes. Engines and thinking have their own, in `engines` and `budget`."""

from dataclasses import dataclass, field

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
            if getattr(self, name) <= 0:
                raise ValueError(f"rollout.limits.{name}={getattr(self, name)} must be above 0")
        if self.turns is not None and self.turns < 1:
            raise ValueError(f"rollout.limits.turns={self.turns} must be 1 or more, or null")


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
        if self.workers < 1 or self.programs < 1 or self.retries < 0:
            raise ValueError(
                f"rollout.workers={self.workers} and programs={self.programs} must be at least 1, "
                f"retries={self.retries} at least 0"
            )
        if self.limits.total_tokens > self.engine.max_model_len:
            raise ValueError(
                f"rollout.limits.total_tokens={self.limits.total_tokens} exceeds "
                f"rollout.engine.max_model_len={self.engine.max_model_len}; raise the latter, or lower the former"
            )

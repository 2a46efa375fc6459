"""Settings of thinking budgets, for runs and servers."""

from dataclasses import dataclass
from typing import Literal

from temper.envs.core.bounds import require_not_negative, require_positive
from temper.envs.core.setting import immutable, scheduled
from temper.envs.core.thinking_mode import Mode, Thinking

Scope = Literal["turn", "episode"]


@dataclass(frozen=True, kw_only=True)
class ThinkingConfig:
    """Thinking limits, and their announcement in the prompt."""

    grace: int = scheduled(0, unit="tokens")
    """Tokens after the budget in which the model may finish its line; 0 ends the thinking at the budget."""
    answer_tokens: int | None = scheduled(None, unit="tokens")
    """Most tokens of the answer after thinking with a budget; null is the limit of a turn."""
    scope: Scope = immutable("turn")
    """Scope of a budget: each turn, or the whole episode."""
    closing: str | None = immutable(None)
    """Text that ends the thinking; null takes it from the chat template."""
    announce: bool = immutable(False)
    """Whether the prompt announces the budget."""
    budget_notice: str = immutable("{thinking token budget: %d}")
    """Announcement at the end of the last user message, with an agent of the first one. %d is the number of tokens."""
    low_effort_marker: str = immutable("{low effort}")
    """Request for low effort, at the same place."""

    def __post_init__(self) -> None:
        require_not_negative("rollout.thinking.grace", self.grace)
        if self.answer_tokens is not None:
            require_positive("rollout.thinking.answer_tokens", self.answer_tokens)
        if self.budget_notice.count("%d") != 1 or self.budget_notice.count("%") != 1:
            raise ValueError(f"rollout.thinking.budget_notice={self.budget_notice!r} must contain %d once")

    def notice(self, thinking: Thinking) -> str:
        """Return the prompt's notice for this mode, or ""."""
        if thinking.mode is Mode.LOW_EFFORT:
            return self.low_effort_marker
        return self.budget_notice % thinking.budget if self.announce and thinking.budget is not None else ""

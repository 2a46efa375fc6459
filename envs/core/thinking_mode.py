"""How long a model may think about a task: without limit, up to a budget, briefly, or not at all."""

import math
import random
from dataclasses import dataclass, replace
from enum import Enum

from temper.envs.core.bounds import require_not_negative
from temper.envs.core.setting import immutable, scheduled


class Mode(Enum):
    """How long the model may think before it answers."""

    UNLIMITED = "unlimited"  # until the model ends it
    BUDGET = "budget"  # up to a number of tokens, then it is ended
    LOW_EFFORT = "low_effort"  # a marker in the prompt asks for little; nothing is enforced
    OFF = "off"  # the prompt allows none


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """The mode of one task, with a budget in tokens for mode `budget`.

    At each of `nested_budgets`, from small to large, unlimited thinking is also ended and answered.
    """

    mode: Mode
    budget: int | None = None
    nested_budgets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.nested_budgets and self.mode is not Mode.UNLIMITED:
            raise ValueError(
                f"mode {self.mode.value} with nested budgets {self.nested_budgets}: only unlimited has them"
            )
        if (self.mode is Mode.BUDGET) != (self.budget is not None):
            raise ValueError(f"mode {self.mode.value} with budget {self.budget}: only mode budget has a budget")
        if self.budget is not None:
            require_not_negative("thinking.budget", self.budget)

    @property
    def on(self) -> bool:
        return self.mode is not Mode.OFF

    @property
    def label(self) -> str:
        """The mode in one word, or `budget-64`, for tables and file names."""
        return self.mode.value if self.budget is None else f"{self.mode.value}-{self.budget}"


UNLIMITED = Thinking(mode=Mode.UNLIMITED)
LOW_EFFORT = Thinking(mode=Mode.LOW_EFFORT)
OFF = Thinking(mode=Mode.OFF)


def up_to(tokens: int) -> Thinking:
    """Return thinking with a budget. Raise `ValueError` for one below 0."""
    return Thinking(mode=Mode.BUDGET, budget=tokens)


@dataclass(frozen=True, kw_only=True)
class ThinkingMix:
    """Shares of the modes among tasks. The rest thinks without limit."""

    budget: float = scheduled(0.0, unit="share")
    """Share that thinks up to a budget."""
    low_effort: float = scheduled(0.0, unit="share")
    """Share whose prompt asks for little thinking."""
    no_thinking: float = scheduled(0.0, unit="share")
    """Share that answers without thinking."""
    budgets: list[int] = scheduled([], unit="tokens")
    """Budgets in tokens, drawn with equal probability. One entry is a fixed budget."""
    budget_range: list[int] = scheduled([], unit="tokens")
    """Lowest and highest budget in tokens, drawn log-uniformly, in place of `budgets`."""

    def __post_init__(self) -> None:
        shares = {"budget": self.budget, "low_effort": self.low_effort, "no_thinking": self.no_thinking}
        for name, share in shares.items():
            require_not_negative(f"thinking.{name}", share)
        if sum(shares.values()) > 1 + 1e-9:
            raise ValueError(f"the shares of thinking are {shares}: their sum must be at most 1")
        for name, values in (("budgets", self.budgets), ("budget_range", self.budget_range)):
            for value in values:
                require_not_negative(f"thinking.{name}", value)
        if self.budget_range and (len(self.budget_range) != 2 or self.budget_range[0] > self.budget_range[1]):
            raise ValueError(f"thinking.budget_range={self.budget_range}: set the lowest and the highest budget")
        if self.budgets and self.budget_range:
            raise ValueError("thinking has both budgets and budget_range: set only one")

    @property
    def names_budgets(self) -> bool:
        return bool(self.budgets or self.budget_range)

    @property
    def largest_budget(self) -> int:
        """The largest budget that can be drawn, 0 if there is none."""
        return max((*self.budgets, *self.budget_range), default=0) if self.budget else 0

    def draw_mode(self, rng: random.Random) -> Mode:
        lot = rng.random()
        for mode, share in (
            (Mode.OFF, self.no_thinking),
            (Mode.BUDGET, self.budget),
            (Mode.LOW_EFFORT, self.low_effort),
        ):
            if lot < share:
                return mode
            lot -= share
        return Mode.UNLIMITED

    def draw_budget(self, rng: random.Random) -> int:
        """Draw a budget in tokens. Budgets must be set."""
        if self.budgets:
            return rng.choice(self.budgets)
        low, high = self.budget_range
        return round(math.exp(rng.uniform(math.log(low + 1), math.log(high + 1)))) - 1

    def draw(self, rng: random.Random) -> Thinking:
        """Draw a mode, with a budget if it needs one."""
        mode = self.draw_mode(rng)
        return up_to(self.draw_budget(rng)) if mode is Mode.BUDGET else Thinking(mode=mode)


@dataclass(frozen=True, kw_only=True)
class NestedThinkingMix(ThinkingMix):
    """Shares of the modes, with nested budgets for unlimited thinking."""

    nested_budgets: list[int] = immutable([], unit="tokens")
    """Budgets from small to large at which unlimited thinking is also ended and answered. Each part of the reasoning is
    credited with the answers after it. Episodes of several turns are trained without them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        budgets = self.nested_budgets
        if budgets != sorted(set(budgets)) or min(budgets, default=0) < 0:
            raise ValueError(
                f"thinking.nested_budgets={budgets}: list different budgets of 0 or more, from small to large"
            )
        shares = self.budget + self.low_effort + self.no_thinking
        if budgets and shares >= 1:
            raise ValueError(
                f"thinking.nested_budgets={budgets} has no effect: the other modes have a share of {shares:g}, which leaves no "
                f"unlimited thinking; lower one of them"
            )

    @property
    def largest_budget(self) -> int:
        return max([super().largest_budget, *self.nested_budgets])

    def draw(self, rng: random.Random) -> Thinking:
        drawn = super().draw(rng)
        return replace(drawn, nested_budgets=tuple(self.nested_budgets)) if drawn.mode is Mode.UNLIMITED else drawn

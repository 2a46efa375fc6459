"""The settings of an evaluation."""

import math
from dataclasses import dataclass

from envs.core.bounds import fraction
from envs.core.setting import running, scheduled


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation on held-out tasks."""

    tasks: int = scheduled(64)
    """Held-out tasks of each environment."""
    samples: int = scheduled(4)
    """Answers to each task, the k of avg@k and pass@k."""
    timeout_s: float = running(600.0)
    """Deadline of answering the tasks once, in seconds; where they are answered under n budgets at once, n times that."""
    max_failures: float = running(0.5)
    """Highest share of failed episodes of one environment over its last 64, or over all; above it the stage ends."""
    budgets: list[int] = scheduled([])
    """Thinking budgets in tokens under which the same tasks are answered once more each."""
    budget_shares: list[float] = scheduled([])
    """Further budgets, as shares of the environment's median thought without a limit in the same evaluation."""
    no_thought: bool = scheduled(False)
    """Whether the tasks are also answered with thinking off."""
    low_effort: bool = scheduled(False)
    """Whether the tasks are also answered where the prompt asks for little thought."""

    def __post_init__(self) -> None:
        if self.tasks < 1 or self.samples < 1:
            raise ValueError(f"eval.tasks={self.tasks} and eval.samples={self.samples} must be at least 1")
        fraction("eval.max_failures", self.max_failures)
        for budget in self.budgets:
            if budget < 0:
                raise ValueError(f"eval.budgets has {budget}: a budget must be 0 or more tokens")
        for share in self.budget_shares:
            if not 0 < share < math.inf:
                raise ValueError(f"eval.budget_shares has {share}: a share of the median thought must be above 0")

    @property
    def has_curve(self) -> bool:
        """Whether there is more to measure than answers after unlimited thought."""
        return bool(self.budgets or self.budget_shares or self.no_thought or self.low_effort)

"""Settings of an evaluation."""

import math
from dataclasses import dataclass, field

from temper.envs.core.bounds import require_fraction, require_positive
from temper.envs.core.setting import free, scheduled
from temper.rollout.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation on held-out tasks."""

    tasks: int | None = scheduled(64)
    """Held-out tasks of each environment. null is all rows of its data in order, and 64 for generated tasks."""
    samples: int = scheduled(4)
    """Answers to each task: the k of avg@k and pass@k. One if the sampling is greedy, because all would be the same."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling of the answers."""
    timeout_s: float = free(3600.0, unit="seconds")
    """Longest wait for the next answered task, in seconds. Supervision finds hung processes much earlier."""
    max_failures: float = free(0.5, unit="share")
    """Highest share of failed episodes of one environment over its last 64, or over all. Above it the stage ends."""
    budgets: list[int] = scheduled([], unit="tokens")
    """Thinking budgets in tokens. Each also ends the unlimited reasoning, so all share one pass. A budget takes its own pass if
    prompts announce it, if an episode has several turns, or if `rollout.thinking.scope` is "episode". `temper report
    --compare --runs` needs the same budgets in all runs."""
    budget_shares: list[float] = scheduled([], unit="share")
    """Further budgets, as shares of the environment's median unlimited reasoning in the same evaluation. They differ by
    model, so runs cannot be compared by them."""
    no_thinking: bool = scheduled(False)
    """Whether to answer the tasks with thinking off too."""
    low_effort: bool = scheduled(False)
    """Whether to answer the tasks with a low-effort prompt too."""

    def __post_init__(self) -> None:
        if (self.tasks is not None and self.tasks < 1) or self.samples < 1:
            raise ValueError(
                f"eval.tasks={self.tasks} and eval.samples={self.samples} must be at least 1; eval.tasks=null takes all rows"
            )
        require_positive("eval.timeout_s", self.timeout_s)
        require_fraction("eval.max_failures", self.max_failures)
        for budget in self.budgets:
            if budget < 0:
                raise ValueError(f"eval.budgets has {budget}: a budget must be 0 or more tokens")
        for share in self.budget_shares:
            if not 0 < share < math.inf:
                raise ValueError(
                    f"eval.budget_shares has {share}: a share of the median reasoning length must be above 0"
                )

    @property
    def answers_per_task(self) -> int:
        """`samples`, or 1 if all answers to a task would be the same."""
        return self.sampling.distinct_answers(self.samples)

    @property
    def limits_thinking(self) -> bool:
        """Whether it ends reasoning at a budget."""
        return bool(self.budgets or self.budget_shares)

    @property
    def has_curve(self) -> bool:
        """Whether there are points besides unlimited thinking."""
        return bool(self.budgets or self.budget_shares or self.no_thinking or self.low_effort)

"""The penalty of thinking tokens, which rises while an environment keeps its accuracy."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from temper.envs.core.thinking_mode import Mode
from temper.rollout.trajectory import Group

SMOOTHING = 0.8
"""Weight of the earlier steps in the running mean of the accuracy."""
PENALTY_TOKENS = 100
"""Thinking tokens that a penalty is for."""


@dataclass(slots=True)
class EnvPenalty:
    """The penalty of one environment, with its running accuracy and the best one so far."""

    penalty: float = 0.0
    accuracy: float | None = None
    best: float = 0.0

    def add(self, accuracy: float, *, margin: float, step: float) -> None:
        before = accuracy if self.accuracy is None else self.accuracy
        self.accuracy = SMOOTHING * before + (1 - SMOOTHING) * accuracy
        self.best = max(self.best, self.accuracy)
        self.penalty = max(0.0, self.penalty + step * (self.accuracy - (self.best - margin)))


class AdaptivePenalty:
    """A penalty for each environment: the dual variable of the constraint accuracy >= best accuracy - `margin`.

    It follows A-DLP (Su et al., "Thinking Fast and Right: Balancing Accuracy and Reasoning Length with Adaptive Rewards",
    2025), which has a fixed reference accuracy. Without a margin it is 0.
    """

    def __init__(self, margin: float | None, *, step: float) -> None:
        self._margin = margin
        self._step = step
        self._envs: dict[str, EnvPenalty] = {}

    def of(self, env: str) -> float:
        """Return the present penalty of `PENALTY_TOKENS` thinking tokens."""
        return self._envs[env].penalty if env in self._envs else 0.0

    def add(self, groups: Iterable[Group]) -> dict[str, float]:
        """Read the answers of a step with unlimited thinking. Return the new penalties as metrics."""
        if self._margin is None:
            return {}
        correct: dict[str, list[bool]] = {}
        for group in groups:
            if group.ticket.task.thinking.mode is Mode.UNLIMITED and group.trajectories:
                correct.setdefault(group.ticket.task.env.name, []).extend(t.correct for t in group.trajectories)
        for env, answers in correct.items():
            self._envs.setdefault(env, EnvPenalty()).add(fmean(answers), margin=self._margin, step=self._step)
        return {f"env/{env}/length_penalty": self.of(env) for env in correct}

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the penalties as JSON data."""
        return {env: asdict(penalty) for env, penalty in self._envs.items()}

    def restore(self, state: Mapping[str, dict[str, Any]]) -> None:
        self._envs = {env: EnvPenalty(**penalty) for env, penalty in state.items()}

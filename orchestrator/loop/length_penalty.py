"""The penalty of thinking tokens, which rises while an environment keeps its accuracy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from temper.envs.core.thinking_mode import Mode
from temper.rollout.trajectory import Group, Trajectory

SMOOTHING = 0.8
"""Weight of the earlier steps in the running mean of the accuracy."""
MOST_LOSS = 0.5
"""Most that an answer loses for its thinking, as a share of a right answer, so that being right pays more."""


@dataclass(slots=True)
class EnvPenalty:
    """The penalty of one environment, with its running accuracy and the best one so far.

    `length` is the mean number of thinking tokens in its first step. An answer of that length loses `penalty`.
    """

    penalty: float = 0.0
    accuracy: float | None = None
    best: float = 0.0
    length: float | None = None

    def add(self, accuracy: float, length: float, *, margin: float, step: float) -> None:
        before = accuracy if self.accuracy is None else self.accuracy
        self.accuracy = SMOOTHING * before + (1 - SMOOTHING) * accuracy
        self.best = max(self.best, self.accuracy)
        self.length = self.length or length
        self.penalty = min(MOST_LOSS, max(0.0, self.penalty + step * (self.accuracy - (self.best - margin))))

    def loss(self, tokens: int) -> float:
        """Return the reward that an answer with these thinking tokens loses."""
        return min(MOST_LOSS, self.penalty * tokens / self.length) if self.length else 0.0


NO_PENALTY = EnvPenalty()


class AdaptivePenalty:
    """A penalty for each environment: the dual variable of the constraint accuracy >= best accuracy - `margin`.

    It follows A-DLP (Su et al., "Thinking Fast and Right: Balancing Accuracy and Reasoning Length with Adaptive Rewards",
    2025), which has a fixed reference accuracy and counts tokens. Here lengths are relative to the first step's, so that one
    `step` fits thoughts of tens and of thousands of tokens. Without a margin it is 0.
    """

    def __init__(self, margin: float | None, *, step: float) -> None:
        self._margin = margin
        self._step = step
        self._envs: dict[str, EnvPenalty] = {}

    def of(self, env: str) -> EnvPenalty:
        """Return the present penalty of an environment."""
        return self._envs.get(env, NO_PENALTY)

    def add(self, groups: Iterable[Group]) -> dict[str, float]:
        """Read the answers of a step with unlimited thinking. Return the new penalties as metrics."""
        if self._margin is None:
            return {}
        free: dict[str, list[Trajectory]] = {}
        for group in groups:
            if group.ticket.task.thinking.mode is Mode.UNLIMITED and group.trajectories:
                free.setdefault(group.ticket.task.env.name, []).extend(group.trajectories)
        for env, answers in free.items():
            accuracy, length = fmean(t.correct for t in answers), fmean(t.thinking_tokens for t in answers)
            self._envs.setdefault(env, EnvPenalty()).add(accuracy, length, margin=self._margin, step=self._step)
        return {f"env/{env}/length_penalty": self.of(env).penalty for env in free}

    def state(self) -> dict[str, EnvPenalty]:
        """Return the penalties by environment."""
        return {env: replace(penalty) for env, penalty in self._envs.items()}

    def restore(self, state: Mapping[str, EnvPenalty]) -> None:
        self._envs = dict(state)

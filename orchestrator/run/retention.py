"""Which checkpoints of a stage are kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from temper.envs.core.bounds import not_negative
from temper.envs.core.setting import running, scheduled

Best = Literal["max", "min"]
TRAJECTORIES_EVERY = 10
"""Steps between trajectory files, also of runs that do not say it."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Which checkpoints and answers of each stage are kept. A checkpoint that is damaged does not count."""

    keep: int = running(2)
    """The newest so many; with 1 there is none to fall back on where that is damaged."""
    best: str | None = running(None)
    """A metric: the checkpoint that is best by it is kept beside the newest. One of the stage's steps, such as env/math/reward,
    counts as its mean over the last 10; one of the evaluations between them, eval/avg_at_k or eval/math/avg_at_k, as it is."""
    best_is: Best = running("max")
    """Which value is best: max or min."""
    batches: int = running(25)
    """The steps after each kept checkpoint whose batches are kept too, so that `temper replay` can train them again: about 20
    bytes for each sampled token, and with `learner.router_replay` one for each expert chosen for an id, those of prompts too
    (two where there are more than 255 experts). 0 keeps none."""
    trajectories_every: int = scheduled(TRAJECTORIES_EVERY)
    """Steps between those whose answers are kept for `temper view` and `temper explain`, about 90 bytes for each sampled token;
    the last step's always are, those of a step that was skipped, and of one in which a number left its band."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"checkpoints.keep={self.keep} must be at least 1")
        not_negative("checkpoints.batches", self.batches)
        if self.trajectories_every < 1:
            raise ValueError(f"checkpoints.trajectories_every={self.trajectories_every} must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept of one stage's whole checkpoints: the `last` so many, and the one with the highest of `scores` by step."""

    last: int = 2
    scores: Mapping[int, float] = field(default_factory=dict)

    def kept(self, whole: Sequence[int]) -> set[int]:
        """Return which of these steps, in order, are kept."""
        scored = [step for step in whole if step in self.scores]
        best = max(scored, key=lambda step: (self.scores[step], step), default=None)
        return {*whole[-self.last :], *([] if best is None else [best])}

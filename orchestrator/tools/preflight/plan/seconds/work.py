"""What a step of the loop has to do, in tokens."""

import math
from dataclasses import dataclass

from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.rollout.episodes.episode import EpisodeLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A step of `rl` or `distill`; lengths are means."""

    stage: str
    steps: int
    groups: int
    """Groups that are trained on."""
    group_size: int
    in_flight: int
    """Answers that are sampled at once, over all engines."""
    prompt_tokens: float
    """Tokens of an answer's sequence that were not sampled, what environments said among them."""
    answer_tokens: float
    longest_answer: float
    kept: float
    """Share of the groups that are trained on."""
    lag: float
    """Versions that a group is behind when it is trained on, at the most in the mean."""
    epochs: int = 1
    """How often what is trained on is gone over."""
    answer_limit: float = math.inf
    """The most tokens that an answer may have."""

    @property
    def mean_lag(self) -> float:
        """Versions that a group is behind when it is trained on, in the mean over all steps, where no slot is ever free.

        Then a group holds its slot for `slots / groups` steps, one more than it is versions behind
        (`orchestrator/loop/buffer.py`).
        Those that the stage begins with were all admitted at once: of them a step trains some that are one version older than
        those of the step before. Groups that are dropped hold slots too, and leave less: then it is somewhat lower.
        """
        beyond = self.in_flight / self.answers - 1
        first = min(float(self.steps), beyond + 1)
        return beyond - first * (2 * beyond + 1 - first) / (2 * self.steps)

    @property
    def answers(self) -> int:
        """Answers that are trained on."""
        return self.groups * self.group_size

    @property
    def sampled(self) -> float:
        """Sampled tokens, those of groups that are dropped too."""
        return self.answers * self.answer_tokens / self.kept

    @property
    def trained(self) -> float:
        """Tokens of the sequences that are trained on, prompts included."""
        return self.answers * (self.prompt_tokens + self.answer_tokens)


def work_of(name: str, loop: LoopConfig, limits: EpisodeLimits, assumptions: Assumptions, *, turns: int | None) -> Work:
    """Return what a step of a stage has to do; `turns` are the most of an episode, None where nobody knows.

    Raise `ValueError` where nothing is assumed to be kept.
    """
    if not 0 < assumptions.kept_groups <= 1:
        raise ValueError(f"--assume kept_groups={assumptions.kept_groups:g}: must be above 0 and at most 1")
    answer = answer_tokens(limits, assumptions, turns=turns)
    most = _answer_limit(limits, assumptions, turns=turns)
    beyond = loop.max_lag if loop.over_sampling is None else loop.over_sampling
    return Work(
        stage=name,
        steps=loop.steps,
        groups=loop.groups_per_step,
        group_size=loop.group_size,
        in_flight=loop.slots * loop.group_size,
        prompt_tokens=prompt_tokens(limits, assumptions),
        answer_tokens=answer,
        longest_answer=min(most, max(1.0, assumptions.longest_times) * answer),
        kept=assumptions.kept_groups,
        lag=float(beyond),
        epochs=loop.epochs,
        answer_limit=most,
    )


def prompt_tokens(limits: EpisodeLimits, assumptions: Assumptions) -> float:
    """Return the mean length of a prompt that is assumed."""
    return min(assumptions.prompt_tokens, limits.total_tokens / 4)


def answer_tokens(limits: EpisodeLimits, assumptions: Assumptions, *, turns: int | None) -> float:
    """Return the mean length of an answer that is assumed, all its turns together."""
    most = _answer_limit(limits, assumptions, turns=turns)
    return min(most, assumptions.answer_tokens or assumptions.answer_share * most)


def _answer_limit(limits: EpisodeLimits, assumptions: Assumptions, *, turns: int | None) -> float:
    """Return the most tokens that are sampled for an answer: what its turns allow, as far as the episode has room."""
    room = max(1.0, limits.total_tokens - prompt_tokens(limits, assumptions))
    return room if turns is None else min(room, float(turns * limits.turn_tokens))

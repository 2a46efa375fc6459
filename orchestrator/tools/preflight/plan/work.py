"""The work of a step of the loop, in tokens."""

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
    """Tokens of an answer's sequence that were not sampled, including those of environments."""
    answer_tokens: float
    longest_answer: float
    kept: float
    """Share of the groups that are trained on."""
    lag: float
    """Most versions that a group is behind, in the mean, when it is trained on."""
    epochs: int = 1

    @property
    def answers(self) -> int:
        """Answers that are trained on."""
        return self.groups * self.group_size

    @property
    def sampled(self) -> float:
        """Sampled tokens, including those of dropped groups."""
        return self.answers * self.answer_tokens / self.kept

    @property
    def trained(self) -> float:
        """Tokens of the sequences that are trained on, including prompts."""
        return self.answers * (self.prompt_tokens + self.answer_tokens)


def work_of(name: str, loop: LoopConfig, limits: EpisodeLimits, assumptions: Assumptions, *, turns: int | None) -> Work:
    """Return the work of a stage's step; `turns` are the most of an episode, None if there is no limit.

    Raise `ValueError` if no groups are assumed to be kept.
    """
    if not 0 < assumptions.kept_groups <= 1:
        raise ValueError(f"--assume kept_groups={assumptions.kept_groups:g}: must be above 0 and at most 1")
    answer = answer_tokens(limits, assumptions, turns=turns)
    most = _answer_limit(limits, assumptions, turns=turns)
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
        lag=float(loop.max_lag if loop.over_sampling is None else loop.over_sampling),
        epochs=loop.epochs,
    )


def prompt_tokens(limits: EpisodeLimits, assumptions: Assumptions) -> float:
    """Return the assumed mean length of a prompt."""
    return min(assumptions.prompt_tokens, limits.total_tokens / 4)


def answer_tokens(limits: EpisodeLimits, assumptions: Assumptions, *, turns: int | None) -> float:
    """Return the assumed mean length of an answer, all its turns together."""
    most = _answer_limit(limits, assumptions, turns=turns)
    return min(most, assumptions.answer_tokens or assumptions.answer_share * most)


def _answer_limit(limits: EpisodeLimits, assumptions: Assumptions, *, turns: int | None) -> float:
    """Return the most sampled tokens of an answer: its turns' limit, as far as the episode has room."""
    room = max(1.0, limits.total_tokens - prompt_tokens(limits, assumptions))
    return room if turns is None else min(room, float(turns * limits.turn_tokens))

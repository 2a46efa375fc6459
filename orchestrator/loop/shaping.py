"""Rewards that depend on the whole group: length control, effort and overlong turns, added to the earned rewards."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from temper.envs.core.bounds import fraction, not_negative
from temper.envs.core.setting import immutable
from temper.envs.core.thinking_mode import Mode
from temper.orchestrator.loop.length_penalty import NO_PENALTY, EnvPenalty
from temper.rewards.length_shaping import effort_reward, length_rewards, overlong_penalty
from temper.rewards.score import CORRECT, correctness
from temper.rollout.trajectory import Group, Trajectory

SHAPING_PARTS = THINKING_LENGTH, ANSWER_LENGTH, EFFORT, OVERLONG, THINKING_PENALTY = (
    "thinking_length",
    "answer_length",
    "effort",
    "overlong",
    "thinking_penalty",
)
"""Score parts that shaping adds to a reward."""
PENALTY_TOKENS = 100
"""Thinking tokens that `solve_rate_penalty` is for."""
FASTEST_RISE = 0.05
"""Highest rise of the adaptive penalty in a step. The running accuracy shows a fall after about 5 steps, and by then the
penalty has risen by at most half of its largest value."""
EARNED_DIGITS = 9
"""Decimals of an earned reward. Subtracting the added parts keeps equal rewards equal."""


@dataclass(frozen=True, kw_only=True)
class ShapingConfig:
    """Rewards for length. Each term is off by default."""

    thinking_length: float = immutable(0.0)
    """Weight of a short reasoning, relative to the other answers of its group. A wrong answer gains nothing. 0 is off."""
    answer_length: float = immutable(0.0)
    """Weight of a short answer, relative to the other answers of its group. 0 is off."""
    shortest_bonus: float = immutable(0.0)
    """Bonus for the shortest reasoning and the shortest answer of a group, if right and among its best fifth. Needs a weight
    above 0."""
    effort_slope: float = immutable(0.0, unit="share")
    """Largest gain of a short answer to a low-effort prompt, as a share of its reward. 0 is off."""
    effort_penalty: float = immutable(1.0)
    """Loss of an answer to such a prompt for each `effort_tokens / effort_slope` tokens too many."""
    effort_tokens: int = immutable(3000, unit="tokens")
    """Length in tokens from which an answer to such a prompt loses reward."""
    overlong_buffer: int = immutable(0, unit="tokens")
    """Tokens before rollout.limits.turn_tokens over which the longest turn of an answer loses more and more. 0 is off."""
    overlong_factor: float = immutable(1.0)
    """Loss at the limit. Tasks with a thinking budget are exempt, since their turns have other limits."""
    solve_rate_penalty: float = immutable(0.0)
    """Penalty of 100 thinking tokens in a group with right answers only. It is multiplied by the group's share of right
    answers, which counts as at least one answer (ALP). 0 is off."""
    accuracy_margin: float | None = immutable(None, unit="share")
    """Accepted drop of an environment's mean accuracy below its best, for shorter thinking. Within it the penalty of thinking
    tokens rises, below it the penalty falls (A-DLP). Null is off."""
    penalty_step: float = immutable(1.0)
    """Change of the penalty in a step, for each 1.0 of accuracy above the bound. An answer with as many thinking tokens as the
    mean of the first step loses the penalty, others lose in proportion, at most 0.5. Needs accuracy_margin."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            not_negative(f"rl.shaping.{name}", value or 0.0)
        if self.accuracy_margin is not None:
            fraction("rl.shaping.accuracy_margin", self.accuracy_margin)
        elif self.penalty_step != 1.0:
            raise ValueError(
                f"rl.shaping.penalty_step={self.penalty_step} has no effect without accuracy_margin; set both"
            )
        if self.effort_tokens < 1:
            raise ValueError(f"rl.shaping.effort_tokens={self.effort_tokens} must be 1 or more")

    @property
    def penalty_rise(self) -> float:
        """Largest rise of the adaptive penalty in a step."""
        return self.penalty_step * (self.accuracy_margin or 0.0)


def require_buffer_fits(shaping: ShapingConfig, *, turn_tokens: int) -> None:
    """Raise `ValueError` if the penalty would apply to turns of every length."""
    if shaping.overlong_buffer > turn_tokens:
        raise ValueError(
            f"rl.shaping.overlong_buffer={shaping.overlong_buffer} must be at most "
            f"rollout.limits.turn_tokens={turn_tokens}"
        )


def shaped(
    group: Group, config: ShapingConfig, *, turn_tokens: int | None = None, length_penalty: EnvPenalty = NO_PENALTY
) -> Group:
    """Add the rewards for length to a group, each as a separate score part.

    Correctness and rank use the earned rewards. `turn_tokens` is the limit of a turn, `length_penalty` the
    environment's adaptive penalty.
    """
    earned_G = [_reward(trajectory) for trajectory in group.trajectories]
    correct_G = [trajectory.correct for trajectory in group.trajectories]
    trajectories = group.trajectories
    if group.ticket.task.thinking.mode is Mode.LOW_EFFORT and config.effort_slope:
        trajectories = tuple(_with_effort(trajectory, config) for trajectory in trajectories)
    for part, weight, lengths_G in (
        (THINKING_LENGTH, config.thinking_length, [t.thinking_tokens for t in trajectories]),
        (ANSWER_LENGTH, config.answer_length, [t.answer_tokens for t in trajectories]),
    ):
        if weight:
            added_G = length_rewards(lengths_G, earned_G, correct_G, weight=weight, bonus=config.shortest_bonus)
            trajectories = tuple(_plus(t, part, added) for t, added in zip(trajectories, added_G, strict=True))
    if config.overlong_buffer and group.ticket.task.thinking.mode is not Mode.BUDGET:
        assert turn_tokens is not None
        trajectories = tuple(_with_overlong(trajectory, config, turn_tokens) for trajectory in trajectories)
    if correct_G:
        share = max(sum(correct_G), 1) / len(correct_G)
        by_share = config.solve_rate_penalty * share / PENALTY_TOKENS
        if by_share or length_penalty.penalty:
            trajectories = tuple(_with_thinking_penalty(t, by_share, length_penalty) for t in trajectories)
    return replace(group, trajectories=trajectories)


def earned(reward: float, parts: Mapping[str, float]) -> float:
    return round(reward - sum(parts.get(part, 0.0) for part in SHAPING_PARTS), EARNED_DIGITS)


def earned_rewards(group: Group) -> list[float]:
    return [earned(_reward(trajectory), trajectory.score.parts) for trajectory in group.trajectories]


def earned_at_budgets(group: Group) -> list[list[float]]:
    """Return the earned rewards at each nested budget and without one, by budget and answer."""
    if not group.ticket.task.thinking.nested_budgets:
        return [earned_rewards(group)] if group.trajectories else []
    rewards_G = (_as_earned(answer).budget_rewards for answer in group.trajectories)
    return [list(of_budget) for of_budget in zip(*rewards_G, strict=True)]


def _as_earned(trajectory: Trajectory) -> Trajectory:
    """Return an answer and its forced answers with their earned rewards."""
    forced = tuple(one if one.failure else _as_earned(one) for one in trajectory.forced_answers)
    own = earned(_reward(trajectory), trajectory.score.parts)
    return replace(trajectory, reward=own, forced_answers=forced)


def _with_overlong(trajectory: Trajectory, config: ShapingConfig, turn_tokens: int) -> Trajectory:
    longest = trajectory.totals.longest_turn
    added = overlong_penalty(longest, limit=turn_tokens, buffer=config.overlong_buffer, factor=config.overlong_factor)
    return _plus(trajectory, OVERLONG, added)


def _with_thinking_penalty(trajectory: Trajectory, by_share: float, adaptive: EnvPenalty) -> Trajectory:
    """Subtract the penalties of thinking tokens, from forced answers too. `by_share` is the penalty of a token by solve rate.

    ALP: Xiang et al., "Just Enough Thinking: Efficient Reasoning with Adaptive Length Penalties Reinforcement Learning", 2025.
    """
    forced = (
        one if one.failure else _with_thinking_penalty(one, by_share, adaptive) for one in trajectory.forced_answers
    )
    tokens = trajectory.thinking_tokens
    own = _plus(trajectory, THINKING_PENALTY, -by_share * tokens - adaptive.loss(tokens))
    return replace(own, forced_answers=tuple(forced))


def _with_effort(trajectory: Trajectory, config: ShapingConfig) -> Trajectory:
    reward = _reward(trajectory)
    after = effort_reward(
        reward,
        trajectory.sampled_tokens,
        slope=config.effort_slope,
        penalty=config.effort_penalty,
        free_length=config.effort_tokens,
    )
    return _plus(trajectory, EFFORT, after - reward)


def _plus(trajectory: Trajectory, part: str, added: float) -> Trajectory:
    reward, parts = _reward(trajectory), trajectory.score.parts
    right = {
        CORRECT: correctness(parts, reward)
    }  # before anything is added, so that correctness does not depend on shaping
    judged = replace(trajectory.score, parts=right | parts | {part: added})
    return replace(trajectory, reward=reward + added, score=judged)


def _reward(trajectory: Trajectory) -> float:
    assert trajectory.reward is not None
    return trajectory.reward

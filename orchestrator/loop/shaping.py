"""Rewards that depend on the whole group: length control, effort and overlong turns, added to the earned rewards."""

from collections.abc import Mapping
from dataclasses import replace

from temper.envs.core.thinking_mode import Mode
from temper.orchestrator.loop.config import ShapingConfig
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
EARNED_DIGITS = 9
"""Decimals of an earned reward. Subtracting the added parts keeps equal rewards equal."""


def shape_rewards(
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


def earned_reward(reward: float, parts: Mapping[str, float]) -> float:
    return round(reward - sum(parts.get(part, 0.0) for part in SHAPING_PARTS), EARNED_DIGITS)


def earned_rewards(group: Group) -> list[float]:
    return [earned_reward(_reward(trajectory), trajectory.score.parts) for trajectory in group.trajectories]


def earned_at_budgets(group: Group) -> list[list[float]]:
    """Return the earned rewards at each nested budget and without one, by budget and answer."""
    if not group.ticket.task.thinking.nested_budgets:
        return [earned_rewards(group)] if group.trajectories else []
    rewards_G = (_as_earned(answer).budget_rewards for answer in group.trajectories)
    return [list(of_budget) for of_budget in zip(*rewards_G, strict=True)]


def _as_earned(trajectory: Trajectory) -> Trajectory:
    """Return an answer and its forced answers with their earned rewards."""
    forced = tuple(one if one.failure else _as_earned(one) for one in trajectory.forced_answers)
    own = earned_reward(_reward(trajectory), trajectory.score.parts)
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

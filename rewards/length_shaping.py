"""Rewards for length: relative to a group, for low-effort prompts, and near the token limit. Pure.

Lengths are in tokens. Suffix: `_G` one entry per answer of the group.
"""

import math

from temper.rewards.rounding import rounding_of

TOP_SHARE = 0.2
"""Share of a group, by reward, whose shortest answers earn the bonus."""


def relative_brevity(lengths_G: list[int]) -> list[float]:
    """Return 1 - (l - l_min) / (l_max - l_min), minus its mean over the group. All 0 if the lengths are equal.

    Kimi Team, "Kimi k1.5: Scaling Reinforcement Learning with LLMs", section 2.3.3 (length penalty), 2025, which subtracts
    0.5 in place of the mean.
    """
    if not lengths_G:
        return []
    shortest, longest = min(lengths_G), max(lengths_G)
    if shortest == longest:
        return [0.0] * len(lengths_G)
    brevity_G = [1 - (length - shortest) / (longest - shortest) for length in lengths_G]
    mean = sum(brevity_G) / len(brevity_G)
    return [brevity - mean for brevity in brevity_G]


def shortest_of_the_best(lengths_G: list[int], rewards_G: list[float]) -> list[bool]:
    """Return which answers are the shortest of the group *and* in its best fifth by reward (ties included)."""
    if not lengths_G:
        return []
    places = math.ceil(len(rewards_G) * TOP_SHARE)
    bar, shortest = sorted(rewards_G, reverse=True)[places - 1] - rounding_of(rewards_G), min(lengths_G)
    return [length == shortest and reward >= bar for length, reward in zip(lengths_G, rewards_G, strict=True)]


def length_rewards(
    lengths_G: list[int], rewards_G: list[float], correct_G: list[bool], *, weight: float, bonus: float
) -> list[float]:
    """Return the reward change of each answer for the length of its thinking or its answer.

    This is `weight` times the relative brevity, plus `bonus` for the shortest of the best. It is at most 0 for a wrong
    answer. It is 0 for a group without a right answer or with equal lengths.

    Kimi Team, "Kimi k1.5", section 2.3.3, 2025: lambda for a right answer, min(0, lambda) for a wrong one.
    """
    if not any(correct_G) or len(set(lengths_G)) < 2:
        return [0.0] * len(lengths_G)
    brevity_G, best_G = relative_brevity(lengths_G), shortest_of_the_best(lengths_G, rewards_G)
    return [
        weight * brevity + bonus * best if correct else min(0.0, weight * brevity)
        for brevity, best, correct in zip(brevity_G, best_G, correct_G, strict=True)
    ]


def effort_reward(reward: float, length: int, *, slope: float, penalty: float, free_length: int) -> float:
    """Return the reward of a low-effort answer: R + R max(l, 0) + p min(l, 0), l = min(1, a (1 - len/ub)).

    `slope` is a, `penalty` is p, and `free_length` is ub in tokens: a longer answer loses reward even if it is right.
    """
    saved = min(1.0, slope * (1 - length / free_length))
    return reward + reward * max(saved, 0.0) + penalty * min(saved, 0.0)


def overlong_penalty(length: int, *, limit: int, buffer: int, factor: float) -> float:
    """Return 0 up to `limit - buffer` tokens, then a linear decrease to -`factor` at the limit and beyond.

    Soft overlong punishment: Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", eq. 13, 2025.
    """
    return -factor * min(max(length - (limit - buffer), 0), buffer) / buffer

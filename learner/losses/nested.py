"""Credit for the parts of reasoning from answers at nested budgets.

Reasoning is also ended at budgets b_1 < ... < b_S and answered there. The reward of each answer belongs to its budget, and
the reward of the whole is the last one. Part s, from 0 to S, has the tokens from b_s to b_(s+1). Its return is the mean of
the rewards from s on, which its tokens can change.

The baseline mixes two terms, and their weights change evenly from part to part. For the first part it is the mean return of
the other answers, for the last part the rewards of the same reasoning so far. AnytimeReasoner: Qi et al., "Optimizing
Anytime Reasoning via Budget Relative Policy Optimization", 2025.

Suffixes: `_G` one entry per answer of a group, `_S` per part of the reasoning.
"""

from statistics import fmean

from temper.learner.losses.advantages import GroupAdvantage


def part_advantages(rewards_GS: list[list[float]], advantage: GroupAdvantage) -> list[list[float]]:
    """Return the advantage of each part of each reasoning. `advantage` subtracts the baseline within the group.

    Without nested budgets this is `advantage` of the rewards.
    """
    returns_GS = [[fmean(rewards_S[part:]) for part in range(len(rewards_S))] for rewards_S in rewards_GS]
    against_others_SG = [advantage(list(returns_G)) for returns_G in zip(*returns_GS, strict=True)]
    last = len(against_others_SG) - 1
    return [
        [
            (1 - part / max(1, last)) * against_others_SG[part][answer]
            + part / max(1, last) * (returns_S[part] - recency_weighted_mean(rewards_GS[answer][:part]))
            for part in range(last + 1)
        ]
        for answer, returns_S in enumerate(returns_GS)
    ]


def recency_weighted_mean(rewards_S: list[float]) -> float:
    """Return the mean of rewards, each with twice the weight of the one before. 0 without any."""
    weights = [2.0**place for place in range(len(rewards_S))]
    return sum(w * reward for w, reward in zip(weights, rewards_S, strict=True)) / (sum(weights) or 1.0)

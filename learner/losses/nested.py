"""Credit for the parts of reasoning from answers at nested budgets.

Reasoning is also ended at budgets b_1 < ... < b_n and answered there, so there are S = n + 1 answers, the whole one last. The
objective is the sum over answers j of P_j times the expected reward r_j. The weights P sum to 1. Part s of the reasoning,
from 0 to n, has the tokens from b_s to b_(s+1). They can change only the answers from s on, so the return of the part is
R_s, the sum of P_j r_j over j >= s. Its advantage is R_s - (s V1 + (S - s) V2) / S. V1 is the recency-weighted mean of the
earlier rewards of the same reasoning, times the sum of P_j over j >= s. V2 is the baseline of R_s within the group.

AnytimeReasoner: Qi et al., "Optimizing Anytime Reasoning via Budget Relative Policy Optimization", 2025.

Suffixes: `_G` one entry per answer of a group, `_S` per answer to one reasoning, or per part of it.
"""

from collections.abc import Sequence

from temper.learner.losses.advantages import GroupAdvantage


def part_advantages(
    rewards_GS: Sequence[Sequence[float]], advantage: GroupAdvantage, *, weights_S: Sequence[float] = ()
) -> list[list[float]]:
    """Return the advantage of each part of each reasoning. `advantage` subtracts the baseline within the group.

    `weights_S` are proportional to P. Empty is uniform. Without nested budgets this is `advantage` of the rewards.
    """
    count = len(rewards_GS[0]) if rewards_GS else 0
    raw_S = weights_S or [1.0] * count
    shares_S = [weight / sum(raw_S) for weight in raw_S]
    parts_SG = []
    for part in range(count):
        returns_G = [
            sum(p * r for p, r in zip(shares_S[part:], rewards_S[part:], strict=True)) for rewards_S in rewards_GS
        ]
        ahead = sum(shares_S[part:])
        parts_SG.append(
            [
                (1 - part / count) * against_others
                + part / count * (own - ahead * recency_weighted_mean(rewards_S[:part]))
                for own, against_others, rewards_S in zip(returns_G, advantage(returns_G), rewards_GS, strict=True)
            ]
        )
    return [list(parts_S) for parts_S in zip(*parts_SG, strict=True)]


def recency_weighted_mean(rewards_S: Sequence[float]) -> float:
    """Return the mean of rewards, each with twice the weight of the one before. 0 without any."""
    weights = [2.0**place for place in range(len(rewards_S))]
    return sum(w * reward for w, reward in zip(weights, rewards_S, strict=True)) / (sum(weights) or 1.0)

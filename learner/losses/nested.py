"""Credit for the parts of a thought from answers at nested budgets.

A thought is cut at budgets b_1 < ... < b_S and answered at each cut. The reward of each answer is the outcome at its budget.
The reward of the whole thought is the last outcome. Part s, from 0 to S, has the tokens from b_s to b_(s+1). Its return is
the mean of the outcomes from s on, which its tokens can change.

The baseline mixes two terms, and their weights change evenly from part to part. For the first part it is the mean return of
the other answers, for the last part the outcomes of the same thought so far. AnytimeReasoner: Qi et al., "Optimizing Anytime
Reasoning via Budget Relative Policy Optimization", 2025.

Suffixes: `_G` one entry per answer of a group, `_S` per part of a thought.
"""

from statistics import fmean

from temper.learner.losses.advantages import GroupAdvantage


def part_advantages(outcomes_GS: list[list[float]], advantage: GroupAdvantage) -> list[list[float]]:
    """Return the advantage of each part of each thought. `advantage` subtracts the baseline within the group.

    Without cuts this is `advantage` of the rewards.
    """
    returns_GS = [[fmean(outcomes_S[part:]) for part in range(len(outcomes_S))] for outcomes_S in outcomes_GS]
    against_others_SG = [advantage(list(returns_G)) for returns_G in zip(*returns_GS, strict=True)]
    last = len(against_others_SG) - 1
    return [
        [
            (1 - part / max(1, last)) * against_others_SG[part][answer]
            + part / max(1, last) * (returns_S[part] - outcome_so_far(outcomes_GS[answer][:part]))
            for part in range(last + 1)
        ]
        for answer, returns_S in enumerate(returns_GS)
    ]


def outcome_so_far(outcomes_S: list[float]) -> float:
    """Return the mean of outcomes, each with twice the weight of the one before. 0 without any."""
    weights = [2.0**place for place in range(len(outcomes_S))]
    return sum(w * outcome for w, outcome in zip(weights, outcomes_S, strict=True)) / (sum(weights) or 1.0)

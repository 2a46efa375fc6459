"""Advantages of answers, from their rewards alone.

Suffixes: `_G` one entry per answer of a group (the answers to one task), `_NG` per group of the batch and answer.
"""

from collections.abc import Callable

WithinGroup = Callable[[list[float]], list[float]]
"""What is done to the rewards of one group."""
EPSILON = 1e-6
"""Added to a deviation of rewards before it divides."""


def leave_one_out(rewards_G: list[float]) -> list[float]:
    """Reward minus the mean of the *other* answers' rewards; 0 for a lone answer.

    RLOO: Kool et al., "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019; Ahmadian et al., "Back to Basics:
    Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs", 2024.
    """
    count = len(rewards_G)
    if count < 2:
        return [0.0] * count
    total = sum(rewards_G)
    return [reward - (total - reward) / (count - 1) for reward in rewards_G]


def mean_centred(rewards_G: list[float]) -> list[float]:
    """Reward minus the group's mean.

    Dr. GRPO: Liu et al., "Understanding R1-Zero-Like Training: A Critical Perspective", 2025.
    """
    if not rewards_G:
        return []
    mean = sum(rewards_G) / len(rewards_G)
    return [reward - mean for reward in rewards_G]


def grpo(rewards_G: list[float]) -> list[float]:
    """Reward minus the group's mean, divided by the group's (population) standard deviation plus 1e-6.

    GRPO: Shao et al., "DeepSeekMath", section 4.1, 2024.
    """
    centred_G = mean_centred(rewards_G)
    if not centred_G:
        return []
    deviation = (sum(x * x for x in centred_G) / len(centred_G)) ** 0.5
    return [x / (deviation + EPSILON) for x in centred_G]


def batch_normalised(values_NG: list[list[float]], tokens_NG: list[list[int]]) -> list[list[float]]:
    """Values minus their mean over the trained tokens of the batch, divided by their (population) deviation plus 1e-6.

    Every token has its answer's value; `tokens_NG` says how many each answer has. REINFORCE++: Hu et al., "REINFORCE++",
    eq. 10, 2025. Its variant with a baseline has the mean of each group subtracted before.
    """
    weighed = [
        (value, count)
        for values_G, tokens_G in zip(values_NG, tokens_NG, strict=True)
        for value, count in zip(values_G, tokens_G, strict=True)
    ]
    total = sum(count for _, count in weighed)
    if not total:
        return [[0.0] * len(values_G) for values_G in values_NG]
    mean = sum(value * count for value, count in weighed) / total
    deviation = (sum((value - mean) ** 2 * count for value, count in weighed) / total) ** 0.5
    return [[(value - mean) / (deviation + EPSILON) for value in values_G] for values_G in values_NG]


def _unchanged(rewards_G: list[float]) -> list[float]:
    return rewards_G


ADVANTAGES: dict[str, WithinGroup] = {
    "loo": leave_one_out,
    "mean": mean_centred,
    "grpo": grpo,
    "reinforce_pp": _unchanged,
    "reinforce_pp_baseline": mean_centred,
}
"""What is done within each group, by the names of the configuration."""
OVER_THE_BATCH = ("reinforce_pp", "reinforce_pp_baseline")
"""Those that are normalised over the whole batch after that: groups of equal rewards teach there too."""

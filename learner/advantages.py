"""Advantages of the answers to one task, from their rewards alone. Suffix: `_G` one entry per answer of the group."""

EPSILON = 1e-6
"""Added to the deviation of a group's rewards."""


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


ADVANTAGES = {"loo": leave_one_out, "mean": mean_centred, "grpo": grpo}
"""The functions by the names of the configuration."""


def group_advantages(rewards_G: list[float], *, kind: str, clip: float) -> list[float]:
    """Advantages of one group by the function named `kind`, each clipped to +-`clip`."""
    return [max(-clip, min(clip, advantage)) for advantage in ADVANTAGES[kind](rewards_G)]

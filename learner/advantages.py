"""Advantages of answers, from their rewards alone.

Suffixes: `_G` one entry per answer of a group (the answers to one task), `_NG` per group of the batch and answer.
"""

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


def batch_normalised(values_NG: list[list[float]]) -> list[list[float]]:
    """Values minus the mean over all answers of the batch, divided by their (population) deviation plus 1e-6.

    REINFORCE++: Hu et al., "REINFORCE++", 2025. Its variant with a baseline has the mean of each group subtracted before.
    """
    flat = iter(grpo([value for values_G in values_NG for value in values_G]))
    return [[next(flat) for _ in values_G] for values_G in values_NG]


def _unchanged(rewards_G: list[float]) -> list[float]:
    return rewards_G


ADVANTAGES = {
    "loo": leave_one_out,
    "mean": mean_centred,
    "grpo": grpo,
    "reinforce_pp": _unchanged,
    "reinforce_pp_baseline": mean_centred,
}
"""What is done within each group, by the names of the configuration."""
OVER_THE_BATCH = ("reinforce_pp", "reinforce_pp_baseline")
"""Those that are normalised over the whole batch after that."""


def batch_advantages(rewards_NG: list[list[float]], *, kind: str, clip: float) -> list[list[float]]:
    """Advantages of all groups of a batch by the rule named `kind`, each clipped to +-`clip`."""
    values_NG = [ADVANTAGES[kind](rewards_G) for rewards_G in rewards_NG]
    if kind in OVER_THE_BATCH:
        values_NG = batch_normalised(values_NG)
    return [[max(-clip, min(clip, value)) for value in values_G] for values_G in values_NG]

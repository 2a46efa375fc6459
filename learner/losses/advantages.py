"""Advantages of answers from their rewards, and which groups have nonzero advantages.

Rewards that are equal within rounding (`has_different_rewards`) have exactly zero advantage within their group.

Suffixes: `_G` one entry per answer of a group (the answers to one task), `_NG` per group of the batch and answer.
"""

import math
from collections.abc import Callable
from typing import Any

from temper.learner.losses.custom_functions import call_on_trial, import_function, is_custom
from temper.rewards.rounding import has_different_rewards, rounding_of

GroupAdvantage = Callable[[list[float]], list[float]]
"""From the rewards of one group to its advantages."""
EPSILON = 1e-6
"""Added to a standard deviation of rewards before division."""
TRIAL_REWARDS = [1.0, 0.0, 0.5]


def rloo(rewards_G: list[float]) -> list[float]:
    """Return each reward minus the mean of the *other* answers' rewards, 0 for a single answer.

    RLOO: Kool et al., "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019; Ahmadian et al., "Back to Basics:
    Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs", 2024.
    """
    count = len(rewards_G)
    if count < 2 or not has_different_rewards(rewards_G):
        return [0.0] * count
    total = sum(rewards_G)
    return [reward - (total - reward) / (count - 1) for reward in rewards_G]


def dr_grpo(rewards_G: list[float]) -> list[float]:
    """Return each reward minus the group's mean.

    Dr. GRPO: Liu et al., "Understanding R1-Zero-Like Training: A Critical Perspective", 2025.
    """
    if not has_different_rewards(rewards_G):
        return [0.0] * len(rewards_G)
    mean = sum(rewards_G) / len(rewards_G)
    return [reward - mean for reward in rewards_G]


def grpo(rewards_G: list[float]) -> list[float]:
    """Return each reward minus the group's mean, divided by the group's (population) standard deviation plus 1e-6.

    GRPO: Shao et al., "DeepSeekMath", section 4.1, 2024.
    """
    centred_G = dr_grpo(rewards_G)
    if not any(centred_G):
        return centred_G
    deviation = (sum(x * x for x in centred_G) / len(centred_G)) ** 0.5
    return [x / (deviation + EPSILON) for x in centred_G]


def normalise_over_batch(values_NG: list[list[float]], tokens_NG: list[list[int]]) -> list[list[float]]:
    """Return values minus their mean over the batch's trained tokens, divided by the (population) deviation plus 1e-6.

    Every token has its answer's value. `tokens_NG` has the number of tokens of each answer. REINFORCE++: Hu et al.,
    "REINFORCE++", eq. 10, 2025. Its variant with a baseline subtracts the mean of each group first.
    """
    weighed = [
        (value, count)
        for values_G, tokens_G in zip(values_NG, tokens_NG, strict=True)
        for value, count in zip(values_G, tokens_G, strict=True)
    ]
    total = sum(count for _, count in weighed)
    if not has_different_rewards([value for value, count in weighed if count]):
        return [[0.0] * len(values_G) for values_G in values_NG]
    mean = sum(value * count for value, count in weighed) / total
    deviation = (sum((value - mean) ** 2 * count for value, count in weighed) / total) ** 0.5
    return [[(value - mean) / (deviation + EPSILON) for value in values_G] for values_G in values_NG]


def _unchanged(rewards_G: list[float]) -> list[float]:
    return rewards_G


ADVANTAGES: dict[str, GroupAdvantage] = {
    "rloo": rloo,
    "dr_grpo": dr_grpo,
    "grpo": grpo,
    "reinforce_pp": _unchanged,
    "reinforce_pp_baseline": dr_grpo,
}
"""The function within each group, by its name in the configuration."""
NORMALISED_OVER_BATCH = ("reinforce_pp", "reinforce_pp_baseline")
"""Advantages that are normalised over the batch afterwards. Groups of equal rewards then have nonzero advantages too."""


def normalise_and_clip(
    values_NG: list[list[float]], tokens_NG: list[list[int]], *, kind: str, clip: float, normalise: bool = True
) -> list[list[float]]:
    """Return the raw advantages of all groups, normalised over the batch if the rule `kind` is, and clipped to +-`clip`.

    `tokens_NG` are the trained tokens of each answer, which normalisation counts. Without `normalise` such rules keep raw
    values: the learner normalises and clips them once it knows the divergence.
    """
    if kind in NORMALISED_OVER_BATCH:
        if not normalise:
            return values_NG
        values_NG = normalise_over_batch(values_NG, tokens_NG)
    return [[max(-clip, min(clip, value)) for value in values_G] for values_G in values_NG]


def has_nonzero_advantage(rewards_G: list[float], *, kind: str) -> bool:
    """Return whether a group with these rewards has a nonzero advantage by the rule named `kind`.

    Rules that normalise over the batch give one to groups of equal rewards too. A custom rule is called to find out.
    """
    if is_custom(kind):
        advantages_G = advantage_function(kind)(rewards_G)
        return any(abs(advantage) > rounding_of(rewards_G) for advantage in advantages_G)
    return kind in NORMALISED_OVER_BATCH or has_different_rewards(rewards_G)


def advantage_function(name: str) -> GroupAdvantage:
    """Return the function of this name. Results of a custom function are checked at every call.

    A custom function receives equal rewards if they are equal within rounding.
    """
    if not is_custom(name):
        return ADVANTAGES[name]
    function = import_function("loss.advantage", name)
    return lambda rewards_G: _to_advantages(name, function(_without_rounding(rewards_G)), rewards_G)


def _without_rounding(rewards_G: list[float]) -> list[float]:
    return list(rewards_G) if has_different_rewards(rewards_G) else [rewards_G[0] for _ in rewards_G]


def check_advantage(name: str) -> None:
    """Raise `ValueError` if a custom advantage can't be imported or returns invalid values."""
    result = call_on_trial(
        "loss.advantage", name, "function(rewards_G)", lambda function: function(list(TRIAL_REWARDS))
    )
    _to_advantages(name, result, TRIAL_REWARDS)


def _to_advantages(name: str, result: Any, rewards_G: list[float]) -> list[float]:
    """Return the result of a custom function as floats. Raises `ValueError` unless it has one finite number per reward."""
    try:
        advantages_G = [float(value) for value in result]
    except (TypeError, ValueError) as error:
        raise ValueError(f"loss.advantage={name!r} returned {result!r}, not a list of numbers") from error
    if len(advantages_G) != len(rewards_G) or not all(map(math.isfinite, advantages_G)):
        raise ValueError(
            f"loss.advantage={name!r} returned {advantages_G} for the rewards {rewards_G}; return one finite number "
            f"per reward"
        )
    return advantages_G

"""Advantages of a whole batch, and which groups have any. Suffixes: `_G` answer of a group, `_NG` group and answer."""

from learner.losses.advantages import OVER_THE_BATCH, batch_normalised
from learner.losses.own_functions import advantage_function, is_own


def batch_advantages(
    rewards_NG: list[list[float]], tokens_NG: list[list[int]], *, kind: str, clip: float, normalise: bool = True
) -> list[list[float]]:
    """Advantages of all groups of a batch by the rule named `kind`, each clipped to +-`clip`.

    `tokens_NG` are the trained tokens of each answer, which a normalisation over the batch counts. Without `normalise` what
    such a rule normalises is left as it is, neither normalised nor clipped: it is done where more is known.
    """
    values_NG = [advantage_function(kind)(rewards_G) for rewards_G in rewards_NG]
    if kind in OVER_THE_BATCH:
        if not normalise:
            return values_NG
        values_NG = batch_normalised(values_NG, tokens_NG)
    return [[max(-clip, min(clip, value)) for value in values_G] for values_G in values_NG]


def has_signal(rewards_G: list[float], *, kind: str) -> bool:
    """Whether a group with these rewards teaches anything by the rule named `kind`.

    Where the batch is the measure, one of equal rewards does; a rule of one's own is asked.
    """
    if is_own(kind):
        return any(advantage_function(kind)(rewards_G))
    return kind in OVER_THE_BATCH or differ(rewards_G)


def differ(rewards_G: list[float]) -> bool:
    """Whether rewards differ: compared with each other, those that all are the same teach nothing."""
    return len(set(rewards_G)) > 1

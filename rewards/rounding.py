"""Rewards that are equal within rounding, such as 0.1 + 0.2 and 0.3.

Suffix: `_G` one entry per answer of a group (the answers to one task).
"""

from collections.abc import Sequence

ROUNDING = 1e-9
"""Largest difference of equal rewards, relative to the largest reward of their group."""


def rounding_of(rewards_G: Sequence[float]) -> float:
    """Return the largest difference that counts as rounding, 0 without rewards."""
    return ROUNDING * max(map(abs, rewards_G), default=0.0)


def has_different_rewards(rewards_G: Sequence[float]) -> bool:
    """Return whether the rewards differ by more than rounding. A NaN differs from all others."""
    tolerance = rounding_of(rewards_G)
    return any(not abs(reward - rewards_G[0]) <= tolerance for reward in rewards_G)

"""Whether the calls of a user's turn were right, by the rules of the leaderboard (its `multi_turn_checker`): state and results.

A turn without gold calls is not looked at: what calls leave behind in it shows in the next one.
"""

from collections import Counter
from collections.abc import Sequence


def fault_of(*, wanted: Sequence[str], seen: Sequence[str], differing: Sequence[str]) -> str:
    """Return what is wrong at the end of a user's turn with gold calls; empty where nothing is.

    `wanted` is what the gold calls of this turn returned, `seen` what all the model's calls did until now, in this turn and
    those before it, `differing` the attributes of the simulators that are others than after the gold calls.
    """
    if differing:
        return f"{', '.join(differing)} not as wanted"
    missing = Counter(wanted) - Counter(seen)
    return f"{missing.total()} of {len(wanted)} wanted results not seen" if missing else ""

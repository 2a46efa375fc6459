"""Recorded expert choices: arrays of shape (ids, expert layers, experts per token).

Expert layers are in model order. -1 marks an unrecorded entry, such as an id that the engine did not process.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Choices = NDArray[np.int16]
UNRECORDED = -1
"""No recorded expert: the trainer's router decides."""


def pad_choices(choices: Choices, *, ids: int) -> Choices:
    """Return the choices cut or padded to `ids` rows. The engine may not have processed the last id."""
    missing = max(0, ids - len(choices))
    return np.pad(choices[:ids], ((0, missing), (0, 0), (0, 0)), constant_values=UNRECORDED).astype(np.int16)


def join_recorded(parts: Sequence[tuple[int, Choices]]) -> Choices:
    """Join parts of choices in the order of computation, each with its start position.

    A position that was computed several times, for example after a preemption, keeps its first choices: its next token was
    sampled with them.
    """
    longest = max(start + len(own) for start, own in parts)
    choices = np.full((longest, *parts[0][1].shape[1:]), UNRECORDED, dtype=np.int16)
    for start, own in reversed(parts):
        choices[start : start + len(own)] = own
    return choices

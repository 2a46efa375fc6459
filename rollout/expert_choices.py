"""The experts that an engine chose: arrays of shape (ids, expert layers, experts of a token).

The expert layers of a model are in order; -1 stands where none is recorded, as for an id that was not processed.
"""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Choices = NDArray[np.int16]
UNRECORDED = -1
"""The expert of a token for which none is recorded: the trainer's router decides."""


def pad_choices(choices: Choices, *, ids: int) -> Choices:
    """Return the choices for so many ids, the last of which the engine may not have processed; what goes beyond is left out."""
    missing = max(0, ids - len(choices))
    return np.pad(choices[:ids], ((0, missing), (0, 0), (0, 0)), constant_values=UNRECORDED).astype(np.int16)


def join_recorded(parts: Sequence[tuple[int, Choices]]) -> Choices:
    """Join parts of choices, each with the position that it begins at, in the order in which an engine computed them.

    A position that was computed several times, as after a preemption, has its first choices: the token after it was sampled
    under those.
    """
    longest = max(start + len(own) for start, own in parts)
    choices = np.full((longest, *parts[0][1].shape[1:]), UNRECORDED, dtype=np.int16)
    for start, own in reversed(parts):
        choices[start : start + len(own)] = own
    return choices


def to_json(choices: Choices | None) -> dict[str, Any] | None:
    """Return choices as plain JSON data: the shape, and the little-endian 16-bit integers in base64."""
    if choices is None:
        return None
    return {"shape": list(choices.shape), "int16": base64.b64encode(choices.astype("<i2").tobytes()).decode("ascii")}


def from_json(data: dict[str, Any] | None) -> Choices | None:
    if data is None:
        return None
    return np.frombuffer(base64.b64decode(data["int16"]), dtype="<i2").reshape(data["shape"]).astype(np.int16)

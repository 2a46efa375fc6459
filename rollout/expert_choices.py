"""The experts that an engine chose: arrays of shape (ids, expert layers, experts of a token), -1 for an id not processed."""

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

Choices = NDArray[np.int16]
UNPROCESSED = -1


def padded(choices: Choices, *, ids: int) -> Choices:
    """The choices for so many ids, the last of which the engine may not have processed; what goes beyond is left out."""
    missing = max(0, ids - len(choices))
    return np.pad(choices[:ids], ((0, missing), (0, 0), (0, 0)), constant_values=UNPROCESSED).astype(np.int16)


def to_json(choices: Choices | None) -> dict[str, Any] | None:
    """As plain JSON data: the shape, and the little-endian 16-bit integers in base64."""
    if choices is None:
        return None
    return {"shape": list(choices.shape), "int16": base64.b64encode(choices.astype("<i2").tobytes()).decode("ascii")}


def from_json(data: dict[str, Any] | None) -> Choices | None:
    """What `to_json` wrote."""
    if data is None:
        return None
    return np.frombuffer(base64.b64decode(data["int16"]), dtype="<i2").reshape(data["shape"]).astype(np.int16)

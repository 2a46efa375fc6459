"""Token data as read-only arrays, one entry per token.

Arrays pass between processes as raw bytes, and are read in place from shared memory. Suffix:
`_T` one entry per token.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
"""Token ids, or weight versions."""
Floats = NDArray[np.float32]
"""Log-probabilities in nats, or advantages. Engines and losses use this type."""
Marks = NDArray[np.bool_]
"""A flag per token."""
Integers = Sequence[int] | NDArray[np.integer]
Truths = Sequence[bool] | Marks
D = TypeVar("D", bound=np.generic)


def as_ids(values: Integers) -> Ids:
    return _freeze(np.array(values, dtype=np.int32))


def as_floats(values: Sequence[float] | Floats) -> Floats:
    return _freeze(np.array(values, dtype=np.float32))


def as_marks(values: Truths) -> Marks:
    return _freeze(np.array(values, dtype=np.bool_))


def fill_array(count: int, value: D) -> NDArray[D]:
    """Return an array of `count` equal values."""
    return _freeze(np.full(count, value, dtype=value.dtype))


def join_arrays(parts: Iterable[NDArray[D]], kind: type[D]) -> NDArray[D]:
    """Return the concatenated arrays, or an empty one."""
    return _freeze(np.concatenate([np.empty(0, dtype=kind), *parts]))


def tokens_of(ids: Ids) -> tuple[int, ...]:
    """Return ids as plain integers, for tokenizers, engines and JSON."""
    return tuple(ids.tolist())


def same_values(one: Any, other: Any) -> bool:
    """Return whether two instances of one dataclass are equal, arrays entry by entry. NaN equals NaN."""
    pairs = ((getattr(one, field.name), getattr(other, field.name)) for field in fields(one) if field.compare)
    return all(_same(mine, theirs) for mine, theirs in pairs)


def _same(mine: Any, theirs: Any) -> bool:
    if not isinstance(mine, np.ndarray):
        return bool(mine == theirs)
    return np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")


def _freeze(array: NDArray[D]) -> NDArray[D]:
    array.setflags(write=False)
    return array

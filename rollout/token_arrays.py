"""What there is of tokens, as arrays: one entry a token, never written to after they were made.

A trajectory keeps its long parts so. Between processes their bytes are moved as they are, and an array that came through
shared memory is read where it lies. Suffix: `_T` one entry per token.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
"""Ids of tokens, or versions of weights."""
Floats = NDArray[np.float32]
"""Log-probabilities in nats, or advantages: engines and losses compute them in this type."""
Marks = NDArray[np.bool_]
"""Of which tokens something is true."""
Integers = Sequence[int] | NDArray[np.integer]
Truths = Sequence[bool] | Marks
D = TypeVar("D", bound=np.generic)


def as_ids(values: Integers) -> Ids:
    """Return integers as an array."""
    return _kept(np.array(values, dtype=np.int32))


def as_floats(values: Sequence[float] | Floats) -> Floats:
    """Return floats as an array."""
    return _kept(np.array(values, dtype=np.float32))


def as_marks(values: Truths) -> Marks:
    """Return truths as an array."""
    return _kept(np.array(values, dtype=np.bool_))


def fill_array(count: int, value: D) -> NDArray[D]:
    """Return an array that has one value for each of so many tokens."""
    return _kept(np.full(count, value, dtype=value.dtype))


def join_arrays(parts: Iterable[NDArray[D]], kind: type[D]) -> NDArray[D]:
    """Return arrays of a type one after the other; an empty one where there are none."""
    return _kept(np.concatenate([np.empty(0, dtype=kind), *parts]))


def tokens_of(ids: Ids) -> tuple[int, ...]:
    """Return ids as plain integers, as tokenizers, engines and JSON want them."""
    return tuple(ids.tolist())


def same_values(one: Any, other: Any) -> bool:
    """Return whether two values of one dataclass are equal, arrays entry by entry; NaN, which is no value, equals itself."""
    pairs = ((getattr(one, field.name), getattr(other, field.name)) for field in fields(one) if field.compare)
    return all(_same(mine, theirs) for mine, theirs in pairs)


def _same(mine: Any, theirs: Any) -> bool:
    if not isinstance(mine, np.ndarray):
        return bool(mine == theirs)
    return np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")


def _kept(array: NDArray[D]) -> NDArray[D]:
    array.setflags(write=False)
    return array

"""Dataclasses as JSON data and back, for files that only Temper reads: checkpoints, recorded batches and sampled answers.

The fields and their types come from the class, so a new field is written and read without a change here. Nothing is unpickled.
"""

import base64
import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Array = NDArray[Any]


def to_base64(array: Array) -> str:
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def from_base64(dtype: str, shape: list[int], content: str) -> Array:
    return np.frombuffer(base64.b64decode(content), dtype=np.dtype(dtype).newbyteorder("<")).reshape(shape)


def to_data(value: object, *, store: Callable[[Array], Any] = to_base64) -> Any:
    """Return a value as JSON data. An array becomes its shape and the result of `store`, under the name of its type."""

    def encode(one: Any) -> Any:
        if isinstance(one, np.ndarray):
            return {"shape": list(one.shape), one.dtype.name: store(one)}
        raise TypeError(f"{type(one).__name__} has no form in JSON")

    return msgspec.to_builtins(value, enc_hook=encode, str_keys=True)


def from_data(kind: type[T], data: Any, *, load: Callable[[str, list[int], Any], Array] = from_base64) -> T:
    """Return the value of `to_data`. Arrays are read-only. `load` makes one from its type, its shape and the result of `store`.

    Raise `ValueError`, with the place in the data, for a missing field or a value of another type.
    """

    def decode(_: type, given: Any) -> Array:
        parts = dict(given)
        shape = parts.pop("shape", [])
        ((dtype, content),) = parts.items()
        array = load(dtype, shape, content)
        array.setflags(write=False)
        return array

    return msgspec.convert(data, kind, dec_hook=decode, str_keys=True)


def to_json(value: object) -> str:
    """Return a value as one line. A tool call may have NaN, large integers and lone surrogates, so Python writes it."""
    return json.dumps(to_data(value))


def from_json(kind: type[T], text: str) -> T:
    """Return the value of `to_json`. Raise as `from_data`."""
    return from_data(kind, json.loads(text))

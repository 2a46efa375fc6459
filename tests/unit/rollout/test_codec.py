"""Damaged data is refused with its place, and arrays come back exactly."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.turns import turn_of

from temper.rollout.codec import from_data, to_data
from temper.rollout.trajectory import Turn

TURN = turn_of([5, 6, 7], context=(1, 2))
ARRAY = "sampled_ids"
FAULTS: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "no_field": (ARRAY, lambda data: data.pop(ARRAY)),
    "another_type": ("text", lambda data: data.update(text=5)),
    "unknown_word": ("closed", lambda data: data["thinking"].update(closed="loudly")),
    "list": (ARRAY, lambda data: data.update({ARRAY: [1, 2]})),
    "no_shape": (ARRAY, lambda data: data[ARRAY].pop("shape")),
    "another_shape": (ARRAY, lambda data: data[ARRAY].update(shape=[4])),
    "no_content": (ARRAY, lambda data: data[ARRAY].pop("int32")),
    "not_base64": (ARRAY, lambda data: data[ARRAY].update(int32="?")),
    "objects": (ARRAY, lambda data: data.update({ARRAY: {"shape": [1], "object": "AAAAAAAAAAA="}})),
    "lengths_differ": ("logprobs_T", lambda data: data.update({ARRAY: to_data(np.arange(2))})),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_data_is_refused_with_its_place(fault: str) -> None:
    name, damage = FAULTS[fault]
    data = to_data(TURN)
    damage(data)
    with pytest.raises(ValueError, match=name):
        from_data(Turn, data)


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.float32, np.float64, np.bool_])
@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (2, 3), (0, 2, 2)])
def test_an_array_comes_back_bit_by_bit_and_read_only(kind: type[np.generic], shape: tuple[int, ...]) -> None:
    made = np.arange(np.prod(shape)).reshape(shape).astype(kind)
    if made.dtype.kind == "f" and made.size:
        made.flat[:4] = [np.nan, np.inf, -0.0, -np.inf][: made.size]
    found = from_data(np.ndarray, to_data(made))
    assert (found.dtype, found.shape, found.tobytes()) == (made.dtype, shape, made.tobytes())
    assert not found.flags.writeable


def test_an_object_without_a_form_is_refused() -> None:
    with pytest.raises(TypeError, match="set_iterator"):
        to_data([iter({1})])

"""Type-strict comparison of a program's result with the expected one."""

import math
from collections.abc import Iterable
from typing import Any


def strictly_equal(result: Any, expected: Any) -> bool:
    """Equality that keeps types apart: 1 is not 1.0 or True, a tuple is no list. Floats agree to 1e-9 relative.

    Both sides are plain data (decoded literals), so that no method of theirs has a say.
    """
    if type(result) is not type(expected):
        return False
    if isinstance(expected, float):
        both_nan = math.isnan(result) and math.isnan(expected)
        return both_nan or math.isclose(result, expected, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(expected, list | tuple):
        return len(result) == len(expected) and all(map(strictly_equal, result, expected))
    if isinstance(expected, dict):
        return _typed(result) == _typed(expected) and all(
            strictly_equal(result[key], expected[key]) for key in expected
        )
    if isinstance(expected, set | frozenset):
        return _typed(result) == _typed(expected)
    return bool(result == expected)


def _typed(keys: Iterable[Any]) -> set[tuple[type, Any]]:
    """Keys with their types, so that True and 1 differ."""
    return {(type(key), key) for key in keys}

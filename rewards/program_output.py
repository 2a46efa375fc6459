"""Comparison of what a program returned or wrote with what was expected."""

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


def strictly_equal(result: Any, expected: Any) -> bool:
    """Compare with types kept apart: 1 is not 1.0 or True, a tuple is no list. Floats agree to 1e-9 relative.

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
    return {(type(key), key) for key in keys}


def json_equal(result: Any, expected: Any) -> bool:
    """Compare with a value that was read from JSON, which has neither tuples nor whole floats nor keys but text."""
    return strictly_equal(_as_json(result), _as_json(expected))


def _as_json(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _as_json(item) for key, item in value.items()}
    return value


def same_output(output: str, expected: str) -> bool:
    """Tell whether a program wrote what was expected, line by line and word by word.

    White space at the ends of lines and blank lines at the end and the beginning do not count, nor how wide the space
    between words is. Words are equal as text, or as numbers: exactly, and where a decimal point or an exponent is
    expected to 1e-6, absolute or relative.
    """
    lines, wanted = ([line.split() for line in text.strip().splitlines()] for text in (output, expected))
    return len(lines) == len(wanted) and all(
        len(words) == len(others) and all(map(_same_word, words, others))
        for words, others in zip(lines, wanted, strict=True)
    )


def _same_word(word: str, expected: str) -> bool:
    if word == expected:
        return True
    if not NUMBER.fullmatch(word) or not NUMBER.fullmatch(expected):
        return False
    if expected.lstrip("+-").isdigit():
        return Decimal(word) == Decimal(expected)
    value, target = float(word), float(expected)
    return math.isfinite(value) and math.isclose(value, target, rel_tol=1e-6, abs_tol=1e-6)

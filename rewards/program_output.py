"""Compare the result or output of a program with the expected one."""

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


def is_strictly_equal(result: Any, expected: Any) -> bool:
    """Compare with strict types: 1 is not 1.0 or True, a tuple is not a list. Floats agree to 1e-9 relative.

    Both sides are plain data (decoded literals), so no method of the program's objects runs.
    """
    if type(result) is not type(expected):
        return False
    if isinstance(expected, float):
        both_nan = math.isnan(result) and math.isnan(expected)
        return both_nan or math.isclose(result, expected, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(expected, list | tuple):
        return len(result) == len(expected) and all(map(is_strictly_equal, result, expected))
    if isinstance(expected, dict):
        return _typed(result) == _typed(expected) and all(
            is_strictly_equal(result[key], expected[key]) for key in expected
        )
    if isinstance(expected, set | frozenset):
        return _typed(result) == _typed(expected)
    return bool(result == expected)


def _typed(keys: Iterable[Any]) -> set[tuple[type, Any]]:
    return {(type(key), key) for key in keys}


def is_json_equal(result: Any, expected: Any) -> bool:
    """Compare with a value read from JSON, which has no tuples, no whole floats and only text keys."""
    return is_strictly_equal(_as_json(result), _as_json(expected))


def _as_json(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _as_json(item) for key, item in value.items()}
    return value


def is_same_output(output: str, expected: str) -> bool:
    """Return whether a program wrote the expected output, by lines and words.

    Trailing white space, leading and trailing blank lines and the width of spaces are ignored. Words are equal as text or
    as numbers: exactly, or to 1e-6 absolute or relative if the expected word has a decimal point or an exponent.
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

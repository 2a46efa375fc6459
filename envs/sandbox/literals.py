"""Plain values as JSON and back, exactly: tuples, sets, bytes, non-finite floats and None are preserved.

A list is a JSON list. Every other container is an object with one key for its type. Both sides of the sandbox use this
file. The trusted side only decodes JSON, so that it always gets plain data.
"""

import math
from typing import Any

MAX_DEPTH = 50


class NotPlain(ValueError):
    """The value is not plain data and can't cross the bridge."""


def encode(value: Any, depth: int = 0) -> Any:
    """Return the JSON form of a plain value. Raise `NotPlain` for anything else."""
    if depth > MAX_DEPTH:
        raise NotPlain(f"nested deeper than {MAX_DEPTH}")
    kind = type(value)
    if kind is str and not value.isascii():
        _check_unicode(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    if isinstance(value, dict):
        return {"dict": [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in value.items()]}
    if kind is list:
        return [encode(item, depth + 1) for item in value]
    for name, container in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if isinstance(value, container):
            return {name: [encode(item, depth + 1) for item in value]}
    raise NotPlain(f"a {kind.__name__} is not plain data")


def decode(form: Any, depth: int = 0) -> Any:
    """Return the value of a JSON form. Raise `ValueError`, `TypeError` or `LookupError` for an invalid form."""
    if depth > MAX_DEPTH:
        raise NotPlain(f"nested deeper than {MAX_DEPTH}")
    if isinstance(form, str) and not form.isascii():
        _check_unicode(form)
    if isinstance(form, list):
        return [decode(item, depth + 1) for item in form]
    if not isinstance(form, dict):
        return form
    if len(form) != 1:
        raise NotPlain("an object must have one key, the type")
    ((name, body),) = form.items()
    match name:
        case "dict":
            return {decode(key, depth + 1): decode(item, depth + 1) for key, item in body}
        case "tuple":
            return tuple(decode(item, depth + 1) for item in body)
        case "set":
            return {decode(item, depth + 1) for item in body}
        case "frozenset":
            return frozenset(decode(item, depth + 1) for item in body)
        case "float":
            return float(body)
        case "bytes":
            return bytes.fromhex(body)
        case "complex":
            return complex(float(body[0]), float(body[1]))
    raise NotPlain(f"unknown type {name!r}")


def _check_unicode(text: str) -> None:
    """Refuse unpaired surrogates, which can't be written to a file."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NotPlain(f"invalid Unicode text: {error.reason}") from error

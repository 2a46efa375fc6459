r"""Actions as text, for each kind of space: their description, and the action of an answer.

Discrete: the last `\boxed{}` names it, otherwise the last action name in the answer. Case is ignored. Text: the last
`\boxed{}`, otherwise the whole answer. All others: the last `\boxed{}`, otherwise the whole answer, is JSON: numbers, lists
of numbers, or an object for a dictionary space.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from gymnasium import spaces

from temper.rewards.answers import boxes

Space = spaces.Space[Any]
TAKEN = (spaces.Discrete, spaces.Text, spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Dict, spaces.Tuple)


def describe_space(space: Space) -> str:
    """Describe the actions of a space. Raise `ValueError` for a space whose actions can't be given as text."""
    match space:
        case spaces.Dict():
            parts = ", ".join(f"{json.dumps(key)}: {describe_space(inner)}" for key, inner in space.spaces.items())
            return f"a JSON object {{{parts}}}"
        case spaces.Tuple():
            return f"a list of {', '.join(describe_space(inner) for inner in space.spaces)}"
        case spaces.Discrete():
            return f"a whole number from {space.start} to {space.start + space.n - 1}"
        case spaces.Text():
            return f"a text of {space.min_length} to {space.max_length} characters"
        case spaces.Box():
            return (
                f"numbers as a list of shape {_listed(space.shape)}, from {_bounds(space.low)} to {_bounds(space.high)}"
            )
        case spaces.MultiDiscrete():
            low, high = space.start, space.start + space.nvec - 1
            return f"whole numbers as a list of shape {_listed(space.shape)}, from {_bounds(low)} to {_bounds(high)}"
        case spaces.MultiBinary():
            return f"0 or 1 as a list of shape {_listed(space.shape)}"
    raise ValueError(
        f"actions of {space} can't be given as text; use one of {', '.join(kind.__name__ for kind in TAKEN)}"
    )


def parse_action(answer: str, space: Space, names: Sequence[str]) -> Any:
    """Return the action of an answer as an element of the space, or None if it gives none."""
    boxed = boxes(answer)
    if isinstance(space, spaces.Discrete):
        number = _named(answer, boxed, names)
        return None if number is None else int(space.start) + number
    text = boxed[-1] if boxed else answer.strip()
    if isinstance(space, spaces.Text):
        return text if space.contains(text) else None
    try:
        action = _element(space, _json(text, space))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return action if space.contains(action) else None


def _named(answer: str, boxed: Sequence[str] | None, names: Sequence[str]) -> int | None:
    numbers = {name.lower(): number for number, name in enumerate(names)}
    if boxed:
        return numbers.get(boxed[-1].lower())
    named = re.findall(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)", answer, re.IGNORECASE)
    return numbers[named[-1].lower()] if named else None


def _json(text: str, space: Space) -> Any:
    if isinstance(space, spaces.Dict) or text.startswith("["):
        return json.loads(text)
    return json.loads(f"[{text}]")


def _element(space: Space, value: Any) -> Any:
    """Return JSON data as an element of a space. A value of another form raises an error."""
    match space:
        case spaces.Dict():
            if not isinstance(value, Mapping) or {*value} != {*space.spaces}:
                raise ValueError("other keys than those of the space")
            return {key: _element(inner, value[key]) for key, inner in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_element(inner, part) for inner, part in zip(space.spaces, value, strict=True))
        case spaces.Text():
            return value
        case spaces.Discrete():
            return value if isinstance(value, int) and not isinstance(value, bool) else None
    numbers = numpy.asarray(value)
    is_integer = space.dtype is not None and numpy.issubdtype(space.dtype, numpy.integer)
    if numbers.dtype.kind not in ("i" if is_integer else "if"):
        raise ValueError("not the numbers of the space")
    if numbers.shape != space.shape and numbers.size == numpy.prod(space.shape or (1,)) and numbers.ndim <= 1:
        numbers = numbers.reshape(space.shape or ())
    action = numbers.astype(space.dtype)
    if not numpy.isfinite(action).all() or (is_integer and (action != numbers).any()):
        raise ValueError("numbers that the space can't hold")
    return action


def _listed(shape: Sequence[int] | None) -> str:
    return str(list(shape or ()))


def _bounds(bound: Any) -> str:
    distinct = numpy.unique(bound)
    return f"{distinct[0]:g}" if distinct.size == 1 else str(numpy.asarray(bound).tolist())

"""Bounds of settings. Each function raises `SettingError` for a value out of bounds."""

import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

TYPES: dict[type, str] = {str: "text", bool: "true or false", float: "a number", list: "a list", Mapping: "a mapping"}
VARIABLE = re.compile(r"\$\(|\$\{?([A-Za-z_]\w*)")


class SettingError(ValueError):
    """A setting that the user must change: its dotted `key`, its `value` and the `remedy`."""

    def __init__(self, key: str, value: object, remedy: str, *, message: str = "") -> None:
        self.key, self.value, self.remedy = key, value, remedy
        super().__init__(message or f"{key}={_as_written(value)}: {remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), message=str(self)), (self.key, self.value, self.remedy)


def _as_written(value: object) -> str:
    """Return a value as people write it: `null`, and `1e-5` for Python's `1e-05`."""
    text = "null" if value is None else str(value)
    return text.replace("e-0", "e-") if isinstance(value, float) else text


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingError(name, repr(value), f"choose one of {', '.join(choices)}")


def require_int(name: str, value: object, *, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingError(name, repr(value), f"must be a whole number, {least} or more")


def require_type(name: str, value: object, kind: type) -> None:
    """Require a value of plain data to be of a type of `TYPES`. A boolean is not a number."""
    if kind is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    else:
        fits = isinstance(value, kind)
    if not fits:
        raise SettingError(name, f"{value!r:.80}", f"must be {TYPES[kind]}")


def require_positive(name: str, value: float) -> None:
    require_type(name, value, float)
    if not value > 0:
        raise SettingError(name, value, "must be above 0")


def require_not_negative(name: str, value: float) -> None:
    require_type(name, value, float)
    if not value >= 0:
        raise SettingError(name, value, "must be 0 or more")


def require_fraction(name: str, value: float) -> None:
    require_type(name, value, float)
    if not 0 <= value <= 1:
        raise SettingError(name, value, "must be between 0 and 1")


def refuse_variable(name: str, path: str) -> None:
    """Refuse `$NAME` and `$(command)` in a path, which only a shell replaces, unless a file has this name."""
    if (found := VARIABLE.search(path)) and not os.path.exists(path):
        read = f"${{oc.env:{found[1] or 'NAME'}}}"
        raise SettingError(
            name, path, f"only a shell replaces {found[0]}; write {read} for a variable of the environment"
        )


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message for an unknown name: the nearest known one, or an empty text."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def require_known(given: Iterable[str], known: Sequence[str], what: str) -> None:
    """Raise `ValueError` for the first unknown name, with the nearest known one. `what` names the setting."""
    for name in given:
        if name not in known:
            hint = suggest_name(str(name), known) or f"; there are {', '.join(known)}"
            raise ValueError(f"{what}: unknown {name!r}{hint}")

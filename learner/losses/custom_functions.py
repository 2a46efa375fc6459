"""Custom functions, written `module.function` in place of a built-in name: imported, and tried before use."""

import importlib
from collections.abc import Callable
from typing import Any

CUSTOM = "your module.function"


def is_custom(name: str) -> bool:
    return "." in name


def import_function(setting: str, name: str) -> Callable[..., Any]:
    """Import the function `module.function`. Raises `ValueError` with the reason of a failure."""
    module, _, function = name.rpartition(".")
    try:
        found = vars(importlib.import_module(module)).get(function)
    except Exception as error:  # a custom module may raise anything
        raise ValueError(
            f"{setting}={name!r}: importing {module!r} from the current folder or the Python path failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise ValueError(f"{setting}={name!r}: the module {module!r} has no function {function!r}")
    return found


def call_on_trial(setting: str, name: str, form: str, call: Callable[[Callable[..., Any]], Any]) -> Any:
    """Return the result of `call(function)`. `form` describes the call in messages. Raises `ValueError` if it fails."""
    function = import_function(setting, name)
    try:
        return call(function)
    except Exception as error:  # a custom function may raise anything
        raise ValueError(f"{setting}={name!r} failed when called as {form}: {type(error).__name__}: {error}") from error

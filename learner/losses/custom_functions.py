"""A function of a user's module, written `module.function` where a name of ours could stand: found, and tried before use."""

import importlib
from collections.abc import Callable
from typing import Any

CUSTOM = "module.function of your own"


def is_custom(name: str) -> bool:
    return "." in name


def import_function(setting: str, name: str) -> Callable[..., Any]:
    """Import the function `module.function`. Raises `ValueError` with the reason where that fails."""
    module, _, function = name.rpartition(".")
    try:
        found = vars(importlib.import_module(module)).get(function)
    except Exception as error:  # whatever a user's module raises while it is imported
        raise ValueError(
            f"{setting}={name!r}: importing {module!r} from the current folder or the Python path failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise ValueError(f"{setting}={name!r}: the module {module!r} has no function {function!r}")
    return found


def call_on_trial(setting: str, name: str, form: str, call: Callable[[Callable[..., Any]], Any]) -> Any:
    """Return what `call` gets from the function; `form` says how it calls. Raises `ValueError` where it fails."""
    function = import_function(setting, name)
    try:
        return call(function)
    except Exception as error:  # whatever a user's function raises
        raise ValueError(f"{setting}={name!r} failed when called as {form}: {type(error).__name__}: {error}") from error

"""Functions of the user that settings name: `module.function`, or `file.py:function`."""

import asyncio
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from temper.envs.core.bounds import suggest_name


@cache
def load_function(name: str) -> Callable[..., Any]:
    """Return the function of this name. Raise `ValueError` if it can't be imported or is not callable."""
    place, mark, function = name.rpartition(":")
    if not mark:
        place, _, function = name.rpartition(".")
    if not (place and function):
        raise ValueError(f"{name!r} names no function; use module.function or file.py:function")
    try:
        found = getattr(_from_file(Path(place).expanduser()) if mark else importlib.import_module(place), function)
    except Exception as error:  # a user's module may raise anything
        from_here = f"; modules load from the current folder, {Path.cwd()}"
        hint = from_here if isinstance(error, ModuleNotFoundError) else _near_name(error, function)
        raise ValueError(f"{name} can't be imported ({type(error).__name__}: {error}){hint}") from error
    if not callable(found):
        raise ValueError(f"{name} is {found!r:.80}, not a function")
    return found


def _near_name(error: Exception, function: str) -> str:
    """Return a hint at a similar name in the module that lacks this one, or an empty text."""
    module = error.obj if isinstance(error, AttributeError) and error.name == function else None
    names = [name for name, value in vars(module).items() if callable(value)] if module is not None else []
    return suggest_name(function, names)


def _from_file(path: Path) -> ModuleType:
    name = f"temper_file_{sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no Python file {path}")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_function(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a function, sync or async. An event loop that runs in this thread waits for it."""
    result = function(*args, **kwargs)
    if not inspect.isawaitable(result):
        return result
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_awaited(result))
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _awaited(result)).result()


async def _awaited(result: Any) -> Any:
    return await result

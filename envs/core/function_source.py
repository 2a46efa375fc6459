"""Names for the caller's functions, so that the processes of a run can import them. The inverse of `load_function`."""

import ast
import builtins
import dis
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

REMEDY = "put it into a module such as mine.py and import it"
PLAIN = (str, int, float, bool, bytes, type(None))


def name_of_function(function: Callable[..., Any] | str, folder: Path) -> str:
    """Return `module.function`. Write a function of a notebook or script to a file in `folder`, and return its name there.

    The file has the function's source and all definitions that it uses from the same place. Raise `ValueError` for a
    lambda, a closure, or a value that is not plain data.
    """
    if isinstance(function, str):
        return function
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        raise ValueError(f"{function!r:.80} is not a named function; define it by def")
    module = sys.modules.get(function.__module__)
    if function.__module__ != "__main__" and vars(module or object).get(function.__name__) is function:
        return f"{function.__module__}.{function.__name__}"
    text = "\n\n".join(dict.fromkeys(_sources(function, seen=set()))) + "\n"
    file = folder / f"functions-{sha256(text.encode()).hexdigest()[:8]}.py"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return f"{file.resolve()}:{function.__name__}"


def _sources(owner: Any, *, seen: set[int]) -> Iterator[str]:
    """Yield the definitions that a function or class needs, each before its user, and the owner last."""
    seen.add(id(owner))
    if isinstance(owner, FunctionType) and owner.__closure__:
        raise ValueError(f"{owner.__name__} uses variables of its enclosing function; {REMEDY}")
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except (OSError, TypeError) as error:
        raise ValueError(f"the source of {owner.__name__} can't be found; {REMEDY}") from error
    namespace = owner.__globals__ if isinstance(owner, FunctionType) else vars(sys.modules[owner.__module__])
    for name in sorted(_global_names(compile(ast.parse(source), owner.__name__, "exec")) - {owner.__name__}):
        if name in namespace:
            yield from _definition(name, namespace[name], user=owner.__name__, seen=seen)
    yield source


def _definition(name: str, value: Any, *, user: str, seen: set[int]) -> Iterator[str]:
    if isinstance(value, ModuleType):
        yield f"import {value.__name__} as {name}"
        return
    module, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    home = sys.modules.get(module) if isinstance(module, str) and module != "__main__" else None
    if home is not None and isinstance(own, str) and vars(home).get(own) is value:
        yield f"from {module} import {own} as {name}"
    elif isinstance(value, FunctionType | type):
        if id(value) not in seen:
            yield from _sources(value, seen=seen)
    elif _is_plain(value):
        yield f"{name} = {value!r}"
    else:
        raise ValueError(f"{user} uses {name}, a {type(value).__name__} that can't be written to a file; {REMEDY}")


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(each) for pair in value.items() for each in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN)


def _global_names(code: CodeType) -> set[str]:
    """Return the global names that code reads, without builtins."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for inner in code.co_consts:
        names |= _global_names(inner) if isinstance(inner, CodeType) else set()
    return names - set(dir(builtins))

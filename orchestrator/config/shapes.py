"""Whether plain data has the shape of settings, which is asked before its types are: sections hold settings, lists are lists.

OmegaConf, which looks at the types, lets a number in place of a section pass, and says of a list in place of a mapping neither
its key nor what would be right.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def require_shape(schema: type, given: Mapping[str, Any], *, under: str = "") -> None:
    """Raise `ValueError`, with the key below `under` and what would be right, for what stands in place of a section, a list or
    a mapping of settings and is none.

    Keys that there are not are left to whoever looks at the types.
    """
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{under.removesuffix('.') or 'a configuration'}={given!r} must be settings, each with its key"
        )
    hints = get_type_hints(schema)
    for name, value in given.items():
        if name in hints:
            _require(hints[name], value, f"{under}{name}")


def _require(hint: Any, value: Any, key: str) -> None:
    if isinstance(value, str) and "${" in value:
        return  # what it stands for is not known yet
    wanted = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if not any(_is_like(one, value) for one in wanted):
        raise ValueError(f"{key}={_shown(value)} must be {_right(wanted, value)}")
    for one in wanted:
        if isinstance(value, Mapping) and is_section(one):
            require_shape(one, value, under=f"{key}.")
        elif isinstance(value, Mapping) and get_origin(one) is dict:
            for name, inner in value.items():
                _require(get_args(one)[1], inner, f"{key}.{name}")


def is_section(hint: Any) -> bool:
    """Return whether a type is a class of settings."""
    return isinstance(hint, type) and is_dataclass(hint)


def _is_like(hint: Any, value: Any) -> bool:
    """Return whether a value has the shape of a type; what is neither a section, a list nor a mapping has that of any."""
    if is_section(hint):
        return (
            isinstance(value, Mapping) or is_dataclass(value) or (isinstance(value, str) and "SHORTHAND" in vars(hint))
        )
    if hint is NoneType:
        return value is None
    if get_origin(hint) is dict:
        return isinstance(value, Mapping)
    return get_origin(hint) is not list or isinstance(value, list | tuple)


def _right(wanted: tuple[Any, ...], value: Any) -> str:
    """Return what would be right in place of a value, with an example made of it."""
    names = [str(one) for one in value] if isinstance(value, list | tuple | Mapping) else [str(value)]
    names = [] if value is None else names
    for one in wanted:
        if is_section(one):
            first = fields(one)[0].name
            shown = value if first == "path" and isinstance(value, str) else "..."
            return f"settings, such as {{{first}: {shown}}}; {{}} leaves all as they are by default"
        if get_origin(one) is dict:
            inner = "{}" if is_section(get_args(one)[1]) else "..."
            return f"a mapping, such as {{{', '.join(f'{name}: {inner}' for name in names)}}}"
    return f"a list, such as [{', '.join(names)}]"


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)

"""Builds settings dataclasses from plain data and checks them with pydantic: unknown keys, types, and the checks of each
class.

    given --complete()--> all keys of every section --resolved()--> no ${...} left --pydantic--> the dataclass
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from temper.envs.core.bounds import SettingError
from temper.envs.core.setting import bounds_of, unit_of
from temper.envs.data.config import DataConfig
from temper.orchestrator.config.keys import unknown_key
from temper.orchestrator.config.text import merged, parsed, resolved
from temper.orchestrator.run.redaction import redacted

UNSET = "???"
"""Shown for a required setting without a value."""
CONFIG = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
ORDER = {"unexpected_keyword_argument": 0, "missing": 2, "value_error": 3}
"""Order of error types: wrong keys, wrong types, missing keys, checks of the classes."""
BOUNDS = {"greater_than_equal": "must be {ge:g} or more", "less_than": "must be below {lt:g}"}
"""Remedies by error type, for numbers out of the bounds of their units."""
SWITCH = {True: "on", False: "off"}
"""Words that YAML reads as booleans. They are choices of some settings."""
Shape = Literal["one", "maybe", "each"]
"""Shape of a field with a section: one, one or null, or one for each key."""


def typed(schema: Any, given: Mapping[str, Any], *, under: str = "") -> Any:
    """Return an object of a dataclass, or of an instance's class, with the given settings over its values.

    Raise `SettingError`, with the key below `under`, for an unknown or wrong setting.
    """
    config, values = (schema, _defaults(schema)) if isinstance(schema, type) else (type(schema), asdict(schema))
    plain = resolved(complete(config, given, values, under=under), under=under)
    try:
        return _bounded(config).validate_python({under: plain})[under]
    except ValidationError as error:
        raise _explained(error, config, under) from error


def values(schema: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings over the defaults as plain data without secrets. The classes do not check them.

    Raise `SettingError` for an unknown key or a wrong type.
    """
    required = {each.name: UNSET for each in fields(schema) if _default(each) is MISSING}
    hidden = redacted(complete(schema, given, required | _defaults(schema)))  # the variable of a secret may be missing
    plain = redacted(resolved(hidden))
    try:
        return asdict(_unchecked(schema).validate_python({"": plain})[""])
    except ValidationError as error:
        raise _explained(error, schema, "") from error


def complete(config: type, given: Any, values: Mapping[str, Any] | None = None, *, under: str = "") -> dict[str, Any]:
    """Return the given settings over `values`, by default over the defaults, with all keys of each section and no shorthand.

    Unknown keys stay. Raise `SettingError` for a plain value in place of a section, a list or a mapping.
    """
    if not isinstance(given, Mapping):
        raise SettingError(under.removesuffix(".") or "a configuration", given, "must be settings, each with its key")
    hints = _hints(config)
    whole = dict(_defaults(config) if values is None else values)
    for name, value in given.items():
        whole[name] = _completed(hints.get(name, Any), value, whole.get(name), f"{under}{name}")
    return whole


def _completed(hint: Any, value: Any, below: Any, key: str) -> Any:
    part, shape = part_of(hint)
    if part is not None and shape != "each" and isinstance(value, str) and "SHORTHAND" in vars(part):
        value = {vars(part)["SHORTHAND"]: value}
    if part is not None and value is None and "NULL" in vars(part):
        value = vars(part)["NULL"]
    if isinstance(value, str) and "${" in value:
        return value
    if isinstance(value, bool) and SWITCH[False] in _words(hint):
        return SWITCH[value]
    _require_shape(hint, value, key)
    if not isinstance(value, Mapping):
        return value
    under = below if isinstance(below, Mapping) else {}
    if part is None:
        return merged(under, value)
    if shape == "each":
        return {
            **under,
            **{name: _completed(part, inner, under.get(name), f"{key}.{name}") for name, inner in value.items()},
        }
    return complete(part, value, under or None, under=f"{key}.")


def _require_shape(hint: Any, value: Any, key: str) -> None:
    """Raise `SettingError` for a value that is not the section, list or mapping of its field."""
    part, shape = part_of(hint)
    optional = type(None) in get_args(hint)
    if value is None and optional:
        return
    names = (
        [str(one) for one in value]
        if isinstance(value, list | tuple | Mapping)
        else []
        if value is None
        else [str(value)]
    )
    if isinstance(value, float) and (hint is str or hint == str | None):  # its text, such as 1e5 or 1.10, is lost
        raise SettingError(key, value, "must be text, and YAML reads a number; quote it in the file")
    if part is not None and shape != "each" and not isinstance(value, Mapping):
        first = fields(part)[0].name
        shown = value if first == "path" and isinstance(value, str) else "..."
        raise SettingError(key, value, f"must be settings, such as {{{first}: {shown}}}; {{}} keeps all defaults")
    whole = next((one for one in (hint, *get_args(hint)) if get_origin(one) in (list, dict)), None)
    kind = get_origin(whole)
    if kind is dict and not isinstance(value, Mapping):
        inner = "{}" if part is not None else "..."
        raise SettingError(
            key, value, f"must be a mapping, such as {{{', '.join(f'{one}: {inner}' for one in names)}}}"
        )
    if kind is list and not isinstance(value, list | tuple):
        raise SettingError(key, value, f"must be a list, such as [{', '.join(names)}]")
    held = [value] if kind is None else list(value.values() if kind is dict else value)
    of = {hint, *get_args(hint)} if whole is None else {*get_args(whole)}
    if {int, float} & of and any(isinstance(one, bool) for one in held):  # pydantic accepts true for 1
        raise SettingError(key, value, "must be a number" if kind is None else "must hold numbers")


def _words(hint: Any) -> set[Any]:
    """Return the choices of a field of this type."""
    return {word for one in (hint, *get_args(hint)) if get_origin(one) is Literal for word in get_args(one)}


def part_of(hint: Any) -> tuple[type | None, Shape]:
    """Return the dataclass in a field of this type, if any, and its shape."""
    if isinstance(hint, type) and is_dataclass(hint):
        return hint, "one"
    found = next((one for one in get_args(hint) if isinstance(one, type) and is_dataclass(one)), None)
    return found, "each" if get_origin(hint) is dict else "maybe"


def data_option(text: str) -> DataConfig:
    """Return the data of an option: a path, or YAML settings. Raise `ValueError` for other text."""
    if not text.lstrip().startswith("{"):
        return DataConfig(path=text)
    data = typed(DataConfig, parsed(text))
    assert isinstance(data, DataConfig)
    return data


@cache
def _hints(config: type) -> dict[str, Any]:
    return get_type_hints(config)


def _default(each: Any) -> Any:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def _defaults(config: type) -> dict[str, Any]:
    found = {each.name: _default(each) for each in fields(config)}
    return {
        name: asdict(one) if is_dataclass(one) and not isinstance(one, type) else one
        for name, one in found.items()
        if one is not MISSING
    }


@cache
def adapter(config: type) -> TypeAdapter[Any]:
    """Return the validator of `{key: settings}`, so that errors show the whole key."""
    return TypeAdapter(dict[str, config], config=CONFIG)  # type: ignore[valid-type]


@cache
def _bounded(config: type) -> SchemaValidator:
    """Return the validator that also refuses numbers out of the bounds of their units."""
    return SchemaValidator(_with_bounds(adapter(config).core_schema))


def _with_bounds(node: Any, units: Mapping[str, str] | None = None, unit: str = "") -> Any:
    """Return a schema with the bounds of each number. `units` has the units of all fields, and `unit` the field's own."""
    if isinstance(node, list):
        return [_with_bounds(inner, units, unit) for inner in node]
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if kind == "dataclass":
        units = {each.name: unit_of(each) for each in fields(node["cls"])}
    elif kind == "dataclass-field" and units is not None:
        unit = units[node["name"]]
    whole = {name: _with_bounds(inner, units, unit) for name, inner in node.items()}
    if kind in ("int", "float"):
        least, most = bounds_of(unit, whole=kind == "int")
        whole |= (
            {"ge": int(least), "lt": int(most)} if kind == "int" else {"ge": least, "lt": most, "allow_inf_nan": False}
        )
    return whole


@cache
def _unchecked(config: type) -> SchemaValidator:
    """Return the validator without the `__post_init__` checks of the classes."""
    return SchemaValidator(_without_post_init(adapter(config).core_schema))


def _without_post_init(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: _without_post_init(inner) for name, inner in node.items() if name != "post_init"}
    return [_without_post_init(inner) for inner in node] if isinstance(node, list) else node


def _explained(found: ValidationError, config: type, under: str) -> ValueError:
    """Return the first error of pydantic, in `ORDER`, with key, value and remedy."""
    error = min(found.errors(), key=lambda one: ORDER.get(one["type"], 1))
    place = [str(word) for word in error["loc"][1:]]
    if error["type"] == "value_error":
        return _prefixed(error["ctx"]["error"], place, under)
    key = f"{under}{'.'.join(place)}"
    value = redacted({key: error["input"]})[key]
    if error["type"] == "unexpected_keyword_argument":
        known = [each.name for each in fields(_section(config, place[:-1]))]
        return unknown_key(key, error["input"], known)
    if error["type"] == "missing":
        return SettingError(key, None, "must be given")
    bound = BOUNDS.get(error["type"])
    message = error["msg"] if bound is None else bound.format(**error["ctx"])
    return SettingError(key, value, f"{message[:1].lower()}{message[1:]}")


def _section(config: type, place: list[str]) -> type:
    """Return the dataclass of a section. A key under `envs` is a section too."""
    words = iter(place)
    for word in words:
        part, shape = part_of(_hints(config)[word])
        assert part is not None
        config = part
        if shape == "each":
            next(words, None)
    return config


def _prefixed(error: ValueError, place: list[str], under: str) -> ValueError:
    """Return an error of a section with whole keys: the section names `loss.kl`, the configuration `rl.loss.kl`."""
    if not place:
        return error
    name, whole = place[-1], f"{under}{'.'.join(place)}."
    message = re.sub(rf"(?<![\w.]){re.escape(name)}\.(?=\w+=)", whole, str(error))
    if not isinstance(error, SettingError):
        return ValueError(message)
    if "." not in error.key:  # of a class with several places
        message = f"{whole}{message}"
    inside = "." not in error.key or error.key.startswith(f"{name}.")
    key = whole + error.key.removeprefix(f"{name}.") if inside else error.key
    return SettingError(key, error.value, error.remedy, message=message)

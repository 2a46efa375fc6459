"""Builds settings dataclasses from plain data and checks them: unknown keys, types by pydantic, then the checks of each class.

given --complete()--> all keys of every section --resolve_values()--> no ${...} left --types--> plain data --> the dataclass
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic

from temper.envs.core.bounds import SettingError
from temper.envs.core.setting import bounds_of, field_hints, part_of, unit_of
from temper.envs.data.config import DataConfig
from temper.orchestrator.config.keys import require_known_keys
from temper.orchestrator.config.text import flatten, merge, parse_yaml, resolve_values
from temper.orchestrator.run.redaction import redact

UNSET = "???"
"""Shown for a required setting without a value, and OmegaConf's word for a value that another layer must give."""
LAX = pydantic.ConfigDict(coerce_numbers_to_str=True)
BOUNDS = {"greater_than_equal": "must be {ge:g} or more", "less_than": "must be below {lt:g}"}
"""Remedies by error type, for numbers out of the bounds of their units."""
OWN_KEY = re.compile(r"\w+=")
"""The start of an error that names a key without its section."""
SWITCH = {True: "on", False: "off"}
"""Words that YAML reads as booleans. They are choices of some settings."""


def to_settings(schema: Any, given: Mapping[str, Any], *, under: str = "") -> Any:
    """Return an object of a dataclass, or of an instance's class, with the given settings over its values.

    Raise `SettingError`, with the key below `under`, for an unknown or wrong setting.
    """
    config, values = (schema, _defaults(schema)) if isinstance(schema, type) else (type(schema), asdict(schema))
    whole = complete(config, given, values, under=under)
    if unset := next((key for key, value in flatten(whole) if value == UNSET), None):
        raise SettingError(f"{under}{unset}", UNSET, "must be given")
    return _built(config, _checked(config, whole, under), under)


def values(
    schema: type, given: Mapping[str, Any], below: Mapping[str, Any] | None = None, *, under: str = ""
) -> dict[str, Any]:
    """Return the given settings over `below`, by default over the defaults, as plain data without secrets.

    The classes do not check them. Raise `SettingError`, with the key below `under`, for an unknown key or a wrong type.
    """
    required = {each.name: UNSET for each in fields(schema) if _default(each) is MISSING}
    whole = complete(schema, given, required | _defaults(schema) if below is None else below, under=under)
    return redact(_checked(schema, redact(whole), under))  # the variable of a secret may be missing


def resolve_given(schema: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings, no others, with each `${...}` resolved. It may refer to a default.

    Raise `SettingError` for one without a value.
    """
    if "${" not in str(given):
        return dict(given)
    found = _cut_to(given, resolve_values(complete(schema, given)))
    assert isinstance(found, dict)
    return found


def _cut_to(given: Any, whole: Any) -> Any:
    """Return the part of nested settings that is given."""
    if not (isinstance(given, Mapping) and isinstance(whole, Mapping)):
        return whole
    return {name: _cut_to(value, whole.get(name, value)) for name, value in given.items()}


def expand(config: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings, no others, with a section in place of each shorthand."""
    hints = field_hints(config)
    return {name: _expand_section(hints.get(name, Any), value) for name, value in given.items()}


def _expand_section(hint: Any, value: Any) -> Any:
    part, shape = part_of(hint)
    if part is None or shape == "each":
        return value
    value = _section(part, value)
    return expand(part, value) if isinstance(value, Mapping) else value


def _section(part: type, value: Any) -> Any:
    """Return the section of a shorthand, and any other value as it is."""
    if isinstance(value, str) and "SHORTHAND" in vars(part):
        return {vars(part)["SHORTHAND"]: value}
    return vars(part)["NULL"] if value is None and "NULL" in vars(part) else value


def complete(config: type, given: Any, values: Mapping[str, Any] | None = None, *, under: str = "") -> dict[str, Any]:
    """Return the given settings over `values`, by default over the defaults, with all keys of each section and no shorthand.

    Unknown keys stay. Raise `SettingError` for a plain value in place of a section, a list or a mapping.
    """
    if not isinstance(given, Mapping):
        raise SettingError(under.removesuffix(".") or "a configuration", given, "must be settings, each with its key")
    hints = field_hints(config)
    whole = dict(_defaults(config) if values is None else values)
    for name, value in given.items():
        whole[name] = _completed(hints.get(name, Any), value, whole.get(name), f"{under}{name}")
    return whole


def _completed(hint: Any, value: Any, below: Any, key: str) -> Any:
    part, shape = part_of(hint)
    if part is not None and shape != "each":
        value = _section(part, value)
    if isinstance(value, str) and "${" in value:
        return value
    if isinstance(value, bool) and SWITCH[False] in _words(hint):
        return SWITCH[value]
    _require_shape(hint, value, key)
    if not isinstance(value, Mapping):
        return value
    under = below if isinstance(below, Mapping) else {}
    if part is None:
        return merge(under, value)
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
    of = {hint, *get_args(hint)} if whole is None else {*get_args(whole)[-1:]}
    numbers = {int, float} & {*of, *map(type, _words(hint))}
    if numbers and any(isinstance(one, bool) for one in held):  # pydantic accepts true for 1
        raise SettingError(key, value, "must be a number" if kind is None else "must hold numbers")
    if str in of and not numbers and any(isinstance(one, float | bool) for one in held):  # 1e5, 1.10 and off are lost
        raise SettingError(key, value, "must be text, and YAML reads a number or a switch; quote it in the file")


def _words(hint: Any) -> set[Any]:
    """Return the choices of a field of this type."""
    return {word for one in (hint, *get_args(hint)) if get_origin(one) is Literal for word in get_args(one)}


def data_option(text: str) -> DataConfig:
    """Return the data of an option: a path, or YAML settings. Raise `ValueError` for other text."""
    if not text.lstrip().startswith("{"):
        return DataConfig(path=text)
    data = to_settings(DataConfig, parse_yaml(text))
    assert isinstance(data, DataConfig)
    return data


def _default(each: Any) -> Any:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def _defaults(config: type) -> dict[str, Any]:
    found = {each.name: _default(each) for each in fields(config)}
    return {
        name: asdict(one) if is_dataclass(one) and not isinstance(one, type) else one
        for name, one in found.items()
        if one is not MISSING
    }


def _checked(config: type, whole: Mapping[str, Any], under: str) -> dict[str, Any]:
    """Return whole settings without `${...}`, with values of their types. Raise `SettingError` as `to_settings`."""
    plain = resolve_values(whole, under=under)
    require_known_keys(field_hints(config), plain, under=under)
    return _validated(config, plain, under)


def _validated(config: type, given: Any, under: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):  # of a `${...}`
        raise SettingError(under.removesuffix("."), given, "must be settings, each with its key")
    present = [each for each in fields(config) if each.name in given]
    found = {each.name: _validated_field(config, each, given[each.name], f"{under}{each.name}") for each in present}
    if missing := [each.name for each in fields(config) if each.name not in given and _default(each) is MISSING]:
        raise SettingError(f"{under}{missing[0]}", None, "must be given")
    return found


def _validated_field(config: type, each: "Field[Any]", value: Any, key: str) -> Any:
    hint = field_hints(config)[each.name]
    part, shape = part_of(hint)
    if part is None:
        try:
            return _validator(hint, unit_of(each)).validate_python(value)
        except pydantic.ValidationError as error:
            raise _explained(error, key) from error
    if value is None and shape == "maybe":
        return None
    if shape == "each" and isinstance(value, Mapping):
        return {str(name): _validated(part, inner, f"{key}.{name}.") for name, inner in value.items()}
    return _validated(part, value, f"{key}.")


@cache
def _validator(hint: Any, unit: str) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(_with_bounds(hint, unit), config=LAX)


def _with_bounds(hint: Any, unit: str) -> Any:
    """Return a type whose numbers have the bounds of their unit."""
    least, most = bounds_of(unit, counts=hint is int)
    if hint is int:
        return Annotated[int, pydantic.Field(ge=int(least), lt=int(most))]
    if hint is float:
        return Annotated[float, pydantic.Field(ge=least, lt=most, allow_inf_nan=False)]
    origin, parts = get_origin(hint), tuple(_with_bounds(one, unit) for one in get_args(hint))
    if origin in (Union, UnionType):
        return reduce(or_, parts)
    return origin[parts] if origin in (list, dict) else hint


def _explained(found: pydantic.ValidationError, key: str) -> SettingError:
    """Return the first error of pydantic with key, value and remedy."""
    error = found.errors()[0]
    key = ".".join([key, *map(str, error["loc"])])
    value = redact({key: error["input"]})[key]
    bound = BOUNDS.get(error["type"])
    message = error["msg"] if bound is None else bound.format(**error["ctx"])
    return SettingError(key, value, f"{message[:1].lower()}{message[1:]}")


def _built(config: type, values: Mapping[str, Any], under: str, *, outermost: bool = True) -> Any:
    """Return an object of a dataclass with its sections. Raise the error of the first check that fails."""
    parts = {name: _built_field(field_hints(config)[name], value, f"{under}{name}") for name, value in values.items()}
    try:
        return config(**parts)
    except ValueError as error:
        if outermost:
            raise
        raise _prefixed(error, under) from error


def _built_field(hint: Any, value: Any, key: str) -> Any:
    part, shape = part_of(hint)
    if part is None or value is None:
        return value
    if shape == "each":
        return {name: _built(part, one, f"{key}.{name}.", outermost=False) for name, one in value.items()}
    return _built(part, value, f"{key}.", outermost=False)


def _prefixed(error: ValueError, whole: str) -> ValueError:
    """Return an error of a section with whole keys: the section names `loss.kl`, the configuration `rl.loss.kl`."""
    name = whole.split(".")[-2]
    message = re.sub(rf"(?<![\w.]){re.escape(name)}\.(?=\w+=)", lambda _: whole, str(error))
    if not isinstance(error, SettingError):
        before = "" if whole in message else whole if OWN_KEY.match(message) else f"{whole[:-1]}: "
        return ValueError(f"{before}{message}")
    if "." not in error.key:  # of a class with several places
        message = f"{whole}{message}"
    inside = "." not in error.key or error.key.startswith(f"{name}.")
    key = whole + error.key.removeprefix(f"{name}.") if inside else error.key
    return SettingError(key, error.value, error.remedy, message=message)

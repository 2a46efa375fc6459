"""Configurations as text: YAML files, one over another, `key=value` overrides, dotted keys. The home of OmegaConf."""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from temper.orchestrator.config.shapes import require_shape
from temper.orchestrator.run.redaction import blanks, redacted, reference

REMOVED = ("learner.sparse_push",)
"""Settings of earlier versions without which a run does the same: they are dropped, so that a run begun with one continues."""
SHIPPED = Path(__file__).resolve().parents[2] / "configs"


def is_file(text: str) -> bool:
    """Return whether an argument names a YAML file, and is no setting."""
    return "=" not in text and Path(text).suffix in (".yaml", ".yml")


def read_text(path: Path, overrides: list[str]) -> Any:
    """Return what a YAML file gives, with further files and `key=value` overrides on top, unchecked.

    Raise `FileNotFoundError` for a missing file and `ValueError` for what is not YAML, not an override, or a secret
    that was blanked.
    """
    given = layered(path, overrides)
    require_secrets(given, path)
    return given


def layered(path: Path, overrides: list[str]) -> Any:
    """Return the same where secrets may be blanked, for what is looked at and not run. Raise as `read_text` for all else."""
    return overridden(_loaded(path), overrides)


def require_secrets(given: Any, path: Path) -> None:
    """Raise `ValueError` where a secret of what the file of a run gives was blanked."""
    if missing := blanks(given):
        raise ValueError(
            f"{path} holds a run's configuration without its secrets: give {', '.join(missing)} again, best as "
            f"'{missing[0]}=${{oc.env:NAME}}' from the environment variable NAME"
        )


def overridden(given: Any, overrides: list[str]) -> Any:
    """Return a configuration with YAML files and `key=value` overrides on top, each over those before it, unchecked.

    Of a file's settings those win that it gives: mappings are merged, lists replaced. Raise as `read_text` does.
    """
    for override in overrides:
        if "=" not in override and not is_file(override):
            raise ValueError(
                f"override {override!r} is not of the form key=value, for example rl.steps=10, and no YAML file"
            )
    whole: dict[str, Any] = given
    for file, group in groupby(overrides, is_file):
        for part in map(_loaded, map(Path, group)) if file else [_of_command_line(list(group))]:
            whole = merged(whole, part)
    return whole


def merged(under: Mapping[str, Any], over: Mapping[str, Any], *, place: str = "") -> dict[str, Any]:
    """Return nested settings merged, the second winning: mappings are merged, all else is replaced.

    Raise `ValueError`, with the key below `place`, for settings over a section that is given as that of another key.
    """
    both = dict(under)
    for key, value in over.items():
        below, here = both.get(key), f"{place}{key}"
        if isinstance(below, str) and "${" in below and isinstance(value, Mapping):
            raise ValueError(f"{here}={below}: nothing can be given over it; write its settings out below {here}")
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = merged(below, value, place=f"{here}.")
        both[key] = value
    return both


def _loaded(path: Path) -> dict[str, Any]:
    """Return the settings of a YAML file."""
    if not path.is_file():
        raise FileNotFoundError(f"no configuration file {path}; shipped ones are in {SHIPPED}")
    try:
        found: Any = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {_said(error)}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no settings: each line of a configuration is `key: value`")
    return found


def _of_command_line(texts: list[str]) -> dict[str, Any]:
    """Return the settings of some `key=value`. Raise `ValueError` with the one that can't be read."""
    given = OmegaConf.create()
    for text in texts:
        try:
            given.merge_with_dotlist([text])
        except (yaml.YAMLError, OmegaConfBaseException) as error:
            raise ValueError(f"override {text!r} holds no YAML behind its equals sign: {_said(error)}") from error
    plain: Any = OmegaConf.to_container(given)
    return plain


def _said(error: Exception) -> str:
    """Return what an error says, of OmegaConf's, which add whose it is, the first line."""
    return str(error).splitlines()[0] if isinstance(error, OmegaConfBaseException) else str(error)


def parsed(text: str) -> Any:
    """Return what YAML text holds, dates in it as text. Raise `ValueError` where it is not YAML."""
    try:
        return OmegaConf.to_container(OmegaConf.create(text))
    except yaml.YAMLError as error:
        raise ValueError(f"{text!r} is not YAML: {error}") from error


def resolved(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with what its `${...}` stand for. Raise `ValueError` for one that stands for nothing."""
    try:
        plain = OmegaConf.to_container(OmegaConf.create(dict(given)), resolve=True)
    except OmegaConfBaseException as error:
        raise ValueError(_explain(error, "")) from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def typed(schema: Any, given: Mapping[str, Any], *, under: str = "") -> Any:
    """Return the object of a dataclass, or of an instance's class, with what is given over its values.

    Raise `ValueError` with the key below `under`, the value and what would be right.
    """
    given = without_removed(given)
    require_shape(schema if isinstance(schema, type) else type(schema), given, under=under)
    try:
        merged = _merged(schema, given)
        _check_parts(merged, under)
        return OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ValueError(_explain(error, under)) from error


def without_removed(given: Mapping[str, Any], *, place: str = "") -> dict[str, Any]:
    """Return nested settings without those that are `REMOVED`."""
    return {
        key: without_removed(value, place=f"{place}{key}.") if isinstance(value, Mapping) else value
        for key, value in given.items()
        if f"{place}{key}" not in REMOVED
    }


def values(schema: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given over the values of a dataclass as plain data, without secrets, whether they go together or not.

    Raise `ValueError` for a key or a type that is wrong.
    """
    given = without_removed(given)
    require_shape(schema, given)
    try:
        hidden = redacted(OmegaConf.to_container(_merged(schema, given)))  # a secret's variable need not be there
        plain = redacted(OmegaConf.to_container(OmegaConf.create(hidden), resolve=True))
    except OmegaConfBaseException as error:
        raise ValueError(_explain(error, "")) from error
    assert isinstance(plain, dict)
    return plain


def _merged(schema: Any, given: Mapping[str, Any]) -> DictConfig:
    whole = spelled_out(schema if isinstance(schema, type) else type(schema), dict(given))
    merged = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.create(whole))
    assert isinstance(merged, DictConfig)
    return merged


def spelled_out(schema: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given with each text that stands for a configuration, as its `SHORTHAND` says, as that configuration."""
    hints = get_type_hints(schema)
    return {key: _spelled_out(hints.get(key), value) for key, value in given.items()}


def _spelled_out(hint: Any, value: Any) -> Any:
    part = next((one for one in (hint, *get_args(hint)) if isinstance(one, type) and is_dataclass(one)), None)
    if part is None:
        return value
    if isinstance(value, str) and (key := vars(part).get("SHORTHAND")):
        return {key: value}
    if not isinstance(value, Mapping):
        return value
    if get_origin(hint) is dict:
        return {
            name: spelled_out(part, inner) if isinstance(inner, Mapping) else inner for name, inner in value.items()
        }
    return spelled_out(part, value)


def _check_parts(config: DictConfig, under: str) -> None:
    """Raise what the parts of a configuration find wrong with themselves, each with its keys as they stand in the file.

    A part names its keys from its own on, such as `loss.kl`; only here is known that it is `rl.loss.kl`.
    """
    for key in config:
        name, part = str(key), None if OmegaConf.is_missing(config, key) else config[key]
        if not isinstance(part, DictConfig):
            continue
        _check_parts(part, f"{under}{name}.")
        if OmegaConf.get_type(part) is not dict:
            try:
                OmegaConf.to_object(part)
            except OmegaConfBaseException:
                raise
            except ValueError as error:
                raise ValueError(re.sub(rf"(?<![\w.]){name}\.(?=\w+=)", f"{under}{name}.", str(error))) from error


def write_text(config: Any, path: Path) -> None:
    """Write a configuration as YAML, without its secrets."""
    path.write_text(yaml_text(config), encoding="utf-8")


def yaml_text(config: Any) -> str:
    """Return a configuration, or plain data, as YAML without its secrets."""
    return OmegaConf.to_yaml(OmegaConf.create(_redacted(config, hidden=reference)))


def written(path: Path, key: str) -> Any:
    """Return the value that a file of `write_text` has under a dotted key; None where it has none."""
    return OmegaConf.select(OmegaConf.load(path), key)


def flat_text(config: Any, *, under: str = "") -> dict[str, str]:
    """Return a configuration as `dotted.key: value`, without its secrets."""
    return dict(_flatten(_redacted(config), under))


def _redacted(config: Any, *, hidden: Callable[[Any], str] | None = None) -> Any:
    plain = OmegaConf.to_container(OmegaConf.create(config))
    return redacted(plain) if hidden is None else redacted(plain, hidden=hidden)


def _flatten(value: Any, prefix: str) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _flatten(inner, f"{prefix}.{key}" if prefix else key)]
    return [(prefix, str(value))]


def _explain(error: OmegaConfBaseException, under: str) -> str:
    """Return OmegaConf's first line, with the nearest existing keys where the key is unknown, which it may suggest itself."""
    first = str(error).splitlines()[0].split(". Did you mean")[0]
    known = getattr(error, "object_type", None)
    names = [each.name for each in fields(known)] if known is not None and is_dataclass(known) else []
    if error.key in names:
        return f"configuration key {under}{error.full_key}: {first}"
    near = get_close_matches(str(error.key), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known keys are {', '.join(names)}" if names else ""
    return f"configuration key {under}{error.full_key or error.key}: {first}{hint}"

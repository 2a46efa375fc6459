"""Configurations as text: layered YAML files, `key=value` overrides, dotted keys. The home of OmegaConf."""

import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from temper.envs.core.bounds import SettingError
from temper.envs.data.config import near_names
from temper.orchestrator.run.redaction import blanks, redact, reference

NO_START = "found character that cannot start any token"
"""libyaml's problem with a tab, @ and `."""
OTHER_BASE = re.compile(r"[-+]?(0[0-7_]+|[1-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
RawConfig = dict[str, Any]
"""A configuration as in a YAML file."""
SHIPPED = Path(__file__).resolve().parents[2] / "configs"


def is_file(text: str) -> bool:
    return "=" not in text and Path(text).suffix in (".yaml", ".yml")


def without_plus(override: str) -> str:
    """Return a setting without the `+` or `++` that Hydra puts before a new key."""
    return re.sub(r"^\+{1,2}(?=[\w-])", "", override)


def read_text(path: Path, overrides: list[str]) -> Any:
    """Return the unchecked settings of a YAML file, with further files and `key=value` overrides on top.

    Raise `FileNotFoundError`, and `ValueError` for invalid YAML, an invalid override, or a redacted secret.
    """
    given = read_layers(path, overrides)
    require_secrets(given, path)
    return given


def read_layers(path: Path, overrides: list[str]) -> Any:
    """Return the same as `read_text`, but allow redacted secrets, for settings that are only shown."""
    return overridden(_loaded(path), overrides)


def require_secrets(given: Any, path: Path) -> None:
    """Raise `ValueError` for redacted secrets."""
    if missing := blanks(given):
        raise ValueError(
            f"{path} has a run's configuration without its secrets: set {', '.join(missing)} again, best as "
            f"'{missing[0]}=${{oc.env:NAME}}' from the environment variable NAME"
        )


def overridden(given: Any, overrides: list[str]) -> Any:
    """Return an unchecked configuration with YAML files and `key=value` overrides on top. Raise as `read_text`."""
    for override in overrides:
        if "=" not in override and not is_file(override):
            raise ValueError(
                f"override {override!r} is not of the form key=value, for example rl.steps=10, and no YAML file"
            )
    whole: dict[str, Any] = given
    for file, group in groupby(overrides, is_file):
        for part in map(_loaded, map(Path, group)) if file else [_of_command_line(list(group))]:
            whole = merge(whole, part)
    return whole


def merge(under: Mapping[str, Any], over: Mapping[str, Any], *, place: str = "") -> dict[str, Any]:
    """Return nested settings merged. Mappings merge, other values are replaced by `over`.

    Raise `ValueError`, with the key below `place`, for settings over a section that refers to another key.
    """
    both = dict(under)
    for key, value in over.items():
        below, here = both.get(key), f"{place}{key}"
        if isinstance(below, str) and "${" in below and isinstance(value, Mapping):
            raise ValueError(
                f"{here}={below} refers to another key and cannot be overridden; write its settings below {here}"
            )
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = merge(below, value, place=f"{here}.")
        both[key] = value
    return both


def packaged_file(path: Path) -> Path | None:
    """Return the file of the package that a relative path such as `configs/demo.yaml` names, if it is not a local file."""
    file = (SHIPPED.parent / path).resolve()
    return file if file.is_relative_to(SHIPPED) and file.is_file() and not path.exists() else None


def config_file(path: Path) -> Path:
    """Return a local file, else the file of the package. Raise `FileNotFoundError` with the nearest names for neither."""
    if path.is_file():
        return path
    if (file := packaged_file(path)) is not None:
        return file
    names = sorted(str(each.relative_to(SHIPPED.parent)) for each in SHIPPED.rglob("*.yaml"))
    near = [
        name for name in names if Path(name).stem in get_close_matches(path.stem, [Path(one).stem for one in names])
    ]
    shipped = f"; the package has {', '.join(near or names)}"
    raise FileNotFoundError(f"no configuration file {path}{near_names(path) or shipped}")


def _loaded(path: Path) -> dict[str, Any]:
    file = config_file(path)
    found: Any = None
    try:
        found = OmegaConf.to_container(OmegaConf.load(file))
        require_decimal(file.read_text(encoding="utf-8"), str(path))
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid YAML: {_first_line(error)}") from error
    except OSError as error:
        if error.errno is not None:  # else OmegaConf's error for a file with a number alone
            raise
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no settings: each line of a configuration is `key: value`")
    return found


def require_decimal(text: str, where: str) -> None:
    """Raise `ValueError` for a number that YAML 1.1 reads in base 8 (010) or 60 (1:30)."""
    for token in yaml.scan(text, Loader=yaml.CSafeLoader):
        if isinstance(token, yaml.ScalarToken) and token.plain and OTHER_BASE.fullmatch(token.value):
            base, line = 60 if ":" in token.value else 8, token.start_mark.line + 1
            raise ValueError(
                f"{where}, line {line}: YAML reads {token.value} in base {base}; write a number without a leading zero or "
                f"colons, and quote a text"
            )


def _of_command_line(texts: list[str]) -> dict[str, Any]:
    given = OmegaConf.create()
    for text in texts:
        try:
            given.merge_with_dotlist([text])
            require_decimal(text.partition("=")[2], text)
        except (yaml.YAMLError, OmegaConfBaseException, UnicodeEncodeError) as error:
            raise ValueError(f"override {text!r} holds no YAML behind its equals sign: {_first_line(error)}") from error
    plain: Any = OmegaConf.to_container(given)
    return plain


def _first_line(error: Exception) -> str:
    """Return an error's message without the lines that OmegaConf adds, with the remedy for a character like a tab."""
    if isinstance(error, yaml.scanner.ScannerError) and error.problem == NO_START:
        return f"{error}; indent with spaces, since YAML refuses tabs, and quote a text that begins with @ or `"
    long = isinstance(error, OmegaConfBaseException | RecursionError)
    return str(error).splitlines()[0] if long else str(error)


def parse_yaml(text: str) -> Any:
    """Return the content of YAML text, with dates as text. Raise `ValueError` for invalid YAML."""
    try:
        return OmegaConf.to_container(OmegaConf.create(text))
    except yaml.YAMLError as error:
        raise ValueError(f"{text!r} is not YAML: {error}") from error


def resolve_values(given: Mapping[str, Any], *, under: str = "") -> dict[str, Any]:
    """Return settings with each `${...}` resolved. Raise `SettingError` for one without a value."""
    if "${" not in str(given):
        return dict(given)
    try:
        plain = OmegaConf.to_container(OmegaConf.create(dict(given)), resolve=True)
    except OmegaConfBaseException as error:
        key = str(error.full_key or "")
        value = dict(flatten(given)).get(key, "${...}")
        raise SettingError(f"{under}{key}", value, _reference_remedy(error)) from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _reference_remedy(error: OmegaConfBaseException) -> str:
    text = _first_line(error)
    if (unset := re.search(r"Environment variable '(\w+)' not found", text)) is not None:
        return f"the environment has no variable {unset[1]}; set it, or write ${{oc.env:{unset[1]},DEFAULT}}"
    name = re.search(r"key '(\w+)'", text)
    return f"{text}; write ${{oc.env:{'NAME' if name is None else name[1]}}} for a variable of the environment"


def yaml_text(config: Any) -> str:
    """Return a configuration, or plain data, as YAML without secrets. Only plain data may have `${...}` that is resolved."""
    is_resolved = is_dataclass(config) and not isinstance(config, type)
    plain = _escaped(asdict(config)) if is_resolved else OmegaConf.to_container(OmegaConf.create(config))
    return OmegaConf.to_yaml(OmegaConf.create(redact(plain, hidden=reference)))


def _escaped(value: Any) -> Any:
    """Return plain data whose texts OmegaConf reads as they are."""
    if isinstance(value, dict):
        return {key: _escaped(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(inner) for inner in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def read_value(path: Path, key: str) -> Any:
    """Return the value of a dotted key in a file of `yaml_text`, None without one. Raise `ValueError` for invalid YAML."""
    return get_value(_loaded(path), key)


def flat_text(config: Any, *, under: str = "") -> dict[str, str]:
    return {key: str(value) for key, value in flatten(redact(asdict(config)), under)}


def flatten(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested mappings as pairs of dotted key and value."""
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in flatten(inner, f"{prefix}.{key}" if prefix else key)]
    return [(prefix, value)]


def get_value(given: Mapping[str, Any], key: str) -> Any:
    """Return the value under a dotted key, None without one."""
    value: Any = given
    for word in key.split("."):
        value = value.get(word) if isinstance(value, Mapping) else None
    return value


def with_value(given: Mapping[str, Any], key: str, value: object) -> RawConfig:
    word, _, rest = key.partition(".")
    below = given.get(word)
    return {**given, word: with_value(below if isinstance(below, Mapping) else {}, rest, value) if rest else value}


def without_key(given: Mapping[str, Any], key: str) -> RawConfig:
    word, _, rest = key.partition(".")
    below = given.get(word)
    kept = {name: value for name, value in given.items() if name != word}
    return {**kept, word: without_key(below, rest)} if rest and isinstance(below, Mapping) else kept

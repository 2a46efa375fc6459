"""Shows a configuration file with overrides, profile settings and all defaults, explains a setting, and compares two files.

Settings are not checked against each other, so an invalid configuration can be shown too.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from temper.envs.core.setting import Kind, kind_of
from temper.orchestrator.config.run_config import USUAL_STAGES, ModelConfig, ResolvedProfile
from temper.orchestrator.config.schema import resolve_given, to_settings, values
from temper.orchestrator.config.text import (
    RawConfig,
    flatten,
    get_value,
    is_file,
    overridden,
    require_secrets,
    yaml_text,
)
from temper.orchestrator.pipeline.config import KINDS, SCHEMA, as_file, make_config, read_shown_settings, with_presets
from temper.orchestrator.pipeline.plan import instances
from temper.orchestrator.pipeline.profiles.inputs import PROFILED
from temper.orchestrator.pipeline.profiles.resolve import resolve_profile
from temper.orchestrator.pipeline.reference.settings import Setting, below, named_setting, value_text
from temper.orchestrator.stages.stage import StageInstance

COMMAND_LINE = "the command line"


@dataclass(frozen=True, kw_only=True)
class ResolvedFile:
    """A configuration file with further files and settings on top."""

    path: Path
    layers: tuple[tuple[str, RawConfig], ...]
    """The values of each override, with its file or the command line. Later ones win."""
    given: RawConfig
    full: RawConfig
    """The same with the settings of its profile and benchmarks."""
    note: str
    """A note on values that only a run would add, or ""."""

    @cached_property
    def values(self) -> dict[str, Any]:
        """All values by key without secrets. Values of an instance are also under its name."""
        shared = values(SCHEMA, self.full)
        return {**shared, **{one.name: _own_values(one, shared) for one in instances(shared["stages"])}}

    @cached_property
    def instances(self) -> list[StageInstance]:
        return instances(self.given.get("stages") or USUAL_STAGES)

    @cached_property
    def resolved(self) -> ResolvedProfile:
        found: ResolvedProfile = to_settings(ResolvedProfile, self.full.get("resolved") or {}, under="resolved.")
        return found


def _own_values(instance: StageInstance, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an instance: its entry over its stage."""
    settings, name = instance.stage.settings, instance.name
    return (
        {} if settings is None else values(settings, instance.overrides, shared[instance.stage.name], under=f"{name}.")
    )


def resolve(path: Path, overrides: list[str], *, settles: bool = True) -> ResolvedFile:
    """Return a file, or the `config.yaml` of a run's folder, with all settings of a run.

    The profile is resolved with `settles`, unless the model needs a download, which `note` explains. Redacted secrets stay.
    Raise `FileNotFoundError` or `ValueError` for a wrong file, key or type.
    """
    file = path / "config.yaml" if path.is_dir() else path
    given = read_shown_settings(file, overrides)
    missing = "" if "resolved" in given else _model_to_download(given)
    note = ""
    if missing:
        note = (
            f"settings of the profile are missing, since they depend on the model: {missing} is not local "
            f"(`hf download {missing}`)"
        )
    whole = given
    if settles and not missing:
        whole = resolve_profile(given)
    layers = tuple((one if is_file(one) else COMMAND_LINE, overridden({}, [one])) for one in overrides)
    return ResolvedFile(path=file, layers=layers, given=given, full=with_presets(whole), note=note)


def resolved_yaml(file: ResolvedFile) -> str:
    """Return the whole configuration as runnable YAML without secrets. Raise `ValueError` if a run would reject it."""
    require_secrets(file.given, file.path)
    if file.note:
        raise ValueError(file.note)
    return yaml_text(as_file(make_config(file.full)))


def _model_to_download(given: RawConfig) -> str:
    model = resolve_given(SCHEMA, given).get("model")
    source = to_settings(ModelConfig, model if isinstance(model, Mapping) else {}, under="model.").source
    return "" if source is None or source.is_here else str(source.path)


NONE = "-"
"""Shown for a missing value."""
THERE = "there"
Row = tuple[str, str, str, str]
"""A key, its value in both configurations, and the kind of its change."""


def differences(first: ResolvedFile, second: ResolvedFile) -> list[str]:
    """Return a table of the differences with the kind of each change, and whether the second is another run."""
    rows = difference_rows(first, second)
    if not rows:
        return ["nothing differs"]
    table = [("setting", str(first.path), str(second.path), "change"), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
    other = [key for key, _, _, kind in rows if kind == Kind.IMMUTABLE.value]
    end = (
        f"another run: {len(other)} of {len(rows)} are immutable"
        if other
        else "the same run: no immutable setting differs"
    )
    return [*lines, end]


def difference_rows(first: ResolvedFile, second: ResolvedFile) -> list[Row]:
    """Return each setting that differs, except the record of the profile.

    An instance of a stage has no differences that its stage has already. An environment in only one of them is one line.
    """
    before, after = _comparable(first, second), _comparable(second, first)
    stages = {one.name: one.stage.name for file in (first, second) for one in file.instances}
    rows: list[Row] = []
    for key in dict.fromkeys((*before, *after)):
        owner, _, rest = key.partition(".")
        general = f"{stages.get(owner, owner)}.{rest}" if rest else key
        values = before.get(key, NONE), after.get(key, NONE)
        said = general != key and values == (before.get(general, NONE), after.get(general, NONE))
        if values[0] != values[1] and not said and set(values) != {NONE, "null"}:
            rows.append((key, *values, kind_of(KINDS, general).value))
    return rows


def _comparable(file: ResolvedFile, other: ResolvedFile) -> dict[str, str]:
    """Return the values of a file by dotted key. `stages` has names, and an environment in only one file is one entry."""
    kept = {name: value for name, value in file.values.items() if name in other.values and name != "resolved"}
    envs = {name: env if name in other.values["envs"] else THERE for name, env in file.values["envs"].items()}
    pairs = flatten({**kept, "stages": ", ".join(one.name for one in file.instances), "envs": envs})
    return {key: value_text(value) for key, value in pairs}


CHANGES = {
    Kind.IMMUTABLE: "another run: a run that has trained rejects it; fork the run, or use another name",
    Kind.SCHEDULE: "the same run resumes and records the change",
    Kind.FREE: "the same run resumes; the setting does not change its results",
}
"""The effect of a change on a resumed run."""
WIDTH = 120


def explain(key: str, path: Path | None, overrides: list[str]) -> list[str]:
    """Return lines about a setting or a section, with its values in a file if given.

    Raise `ValueError` with the nearest keys for an unknown setting, and as `resolve` for the file.
    """
    return explain_setting(key, None if path is None else resolve(path, overrides, settles=_may_be_chosen(key)))


def _may_be_chosen(key: str) -> bool:
    """Return whether a profile may resolve a setting, or one in a section, of any instance of a stage."""
    first, *rest = key.split(".")
    return not rest or first == "resolved" or any(one.split(".")[1 : len(rest) + 1] == rest for one in PROFILED)


def explain_setting(key: str, file: ResolvedFile | None) -> list[str]:
    setting = named_setting(key, {} if file is None else {one.name: one.stage.name for one in file.instances})
    if setting.is_section:
        return [key, *_laid_out("section", setting.meaning), *_inside(key, setting, file)]
    resolved = f"{setting.default_text}, or by the profile for hardware and model (docs/hardware.md)"
    default = resolved if setting.key in PROFILED else setting.default_text
    said = {"type": setting.type, "default": default, "unit": setting.unit}
    lines = [line for name, text in said.items() if text for line in _laid_out(name, text)]
    lines += [line for text in _values(key, file) for line in _laid_out("value", text)]
    if file is not None and setting.key in PROFILED and not stands(file.given, key):
        lines += _laid_out("note", file.note)
    lines += _laid_out("meaning", setting.meaning)
    if setting.kind is not None:
        lines += _laid_out("change", f"{setting.kind.value}: {CHANGES[setting.kind]}")
    return [key, *lines, *_inside(key, setting, file)]


def _values(key: str, file: ResolvedFile | None) -> list[str]:
    """Return the value of the setting in a file, and its origin; for `envs.*` for each environment."""
    if file is None:
        return []
    keys = [key.replace("*", name, 1) for name in file.values["envs"]] if "*" in key else [key]
    lines = []
    for key in keys:
        shown = f"{key}: " if len(keys) > 1 else ""
        if stands(file.values, key):
            lines.append(f"{shown}{value_text(get_value(file.values, key))} ({origin(key, file)})")
        else:
            lines.append(f"{shown}none ({key.rpartition('.')[0]} has no such entry)")
    return lines


def _inside(named: str, setting: Setting, file: ResolvedFile | None) -> list[str]:
    """Return a line for each setting of a section: key, value and meaning."""
    parts = below(setting)
    if not parts:
        return []
    of_all = setting.shape == "each" and named == setting.key
    keys = [one.key if of_all else f"{named}.{one.name}" for one in parts]
    values = [_value_inside(one, key, file) for one, key in zip(parts, keys, strict=True)]
    widths = max(map(len, keys)), max(map(len, values))
    rows = zip(keys, values, parts, strict=True)
    lines = [f"  {key:<{widths[0]}}  {value:<{widths[1]}}  {one.meaning}" for key, value, one in rows]
    what = "by default" if file is None else f"in {file.path}"
    return ["", f"  values {what}:", *(_cut(line) for line in lines)]


def _value_inside(setting: Setting, key: str, file: ResolvedFile | None) -> str:
    if setting.is_section:
        return "section"
    given = file is not None and stands(file.values, key)
    return _cut(value_text(get_value(file.values, key)) if file and given else setting.default_text, width=30)


def _cut(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else f"{text[: width - 4].rstrip()} ..."


def _laid_out(name: str, text: str) -> list[str]:
    margin = " " * 12
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {name:<10}", subsequent_indent=margin, break_on_hyphens=False)


def origin(key: str, file: ResolvedFile) -> str:
    if above := _layer(key, file):
        return above
    first, _, rest = key.partition(".")
    instance = next((one for one in file.instances if one.name == first), None)
    if instance is None:
        return _shared_origin(key, file)
    if stands(instance.overrides, rest):
        return f"{_layer('stages', file) or file.path}, in its entry of `stages`"
    general = f"{instance.stage.name}.{rest}"
    return _shared_origin(key, file) if general == key else f"as {general}: {origin(general, file)}"


def _layer(key: str, file: ResolvedFile) -> str:
    return next((name for name, given in reversed(file.layers) if stands(given, key)), "")


def _shared_origin(key: str, file: ResolvedFile) -> str:
    resolved = file.resolved
    by_profile = f"profile {resolved.profile} ({resolved.hardware})"
    if stands(file.given, key):
        recorded = "resolved" in file.given and key in resolved.settings
        return f"{by_profile}, recorded in {file.path}" if recorded else str(file.path)
    if key in resolved.settings:
        return by_profile
    if stands(file.full, key) and key.startswith("envs."):
        env = key.split(".")[1]
        return f"the standard set {file.given['envs'][env]['preset']}"
    return "default"


def stands(given: object, key: str) -> bool:
    """Return whether a dotted key has a value, null included. A text in place of a section sets all its keys."""
    value: Any = given
    for word in key.split("."):
        if isinstance(value, str):
            return True
        if not isinstance(value, Mapping) or word not in value:
            return False
        value = value[word]
    return True

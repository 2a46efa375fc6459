"""A configuration file with its overrides, its profile's choices and all defaults, and the differences between two files.

A configuration that a run refuses can be shown too: its settings are not checked against each other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from temper.envs.core.setting import Kind, kind_of
from temper.orchestrator.config.run_config import USUAL_STAGES, ChosenConfig
from temper.orchestrator.config.schema import values
from temper.orchestrator.config.text import is_file, merged, overridden, require_secrets, resolved, yaml_text
from temper.orchestrator.pipeline.config import KINDS, SCHEMA, as_file, make_config, shown_text, with_presets
from temper.orchestrator.pipeline.plan import instances
from temper.orchestrator.pipeline.profiles.asked import Given
from temper.orchestrator.pipeline.profiles.settled import chosen_in, model_in, settled
from temper.orchestrator.pipeline.reference.settings import value_text
from temper.orchestrator.stages.stage import StageInstance

COMMAND_LINE = "the command line"


@dataclass(frozen=True, kw_only=True)
class ResolvedFile:
    """A configuration file, with further files and settings on top of it."""

    path: Path
    layers: tuple[tuple[str, Given], ...]
    """The values of each override, with the name of its file or of the command line. Later ones win."""
    given: Given
    """What it gives, with the overrides."""
    whole: Given
    """The same with what the profile chooses, and with the settings of standard sets."""
    note: str
    """A note on values that only a run would add, or ""."""

    @cached_property
    def values(self) -> dict[str, Any]:
        """All values by key, without secrets; those of an instance of a stage are under its name too."""
        shared = values(SCHEMA, self.whole)
        own = {one.name: merged(shared.get(one.stage.name, {}), one.given) for one in self.instances}
        return {**shared, **own}

    @cached_property
    def instances(self) -> list[StageInstance]:
        return instances(self.given.get("stages") or USUAL_STAGES)

    @cached_property
    def chosen(self) -> ChosenConfig:
        return chosen_in(self.whole)


def resolve(path: Path, overrides: list[str], *, settles: bool = True) -> ResolvedFile:
    """Return a file, or the `config.yaml` of a run's folder, with all settings of a run.

    The profile chooses if it `settles`; not for a model that would have to be downloaded, which `note` says. Blanked secrets
    stay. Raise `FileNotFoundError` or `ValueError` for a wrong file, key or type.
    """
    file = path / "config.yaml" if path.is_dir() else path
    given = shown_text(file, overrides)
    missing = "" if "chosen" in given else _model_to_download(given)
    note = ""
    if missing:
        note = (
            f"what the profile chooses goes by the model and is not in it: {missing} is not on this machine "
            f"(`hf download {missing}`)"
        )
    whole = with_presets(given if missing or not settles else settled(given))
    layers = tuple((one if is_file(one) else COMMAND_LINE, overridden({}, [one])) for one in overrides)
    return ResolvedFile(path=file, layers=layers, given=given, whole=whole, note=note)


def resolved_yaml(file: ResolvedFile) -> str:
    """Return the whole configuration as YAML without secrets, which can be run. Raise `ValueError` if a run would refuse it."""
    require_secrets(file.given, file.path)
    if file.note:
        raise ValueError(file.note)
    return yaml_text(as_file(make_config(file.whole)))


def _model_to_download(given: Given) -> str:
    model = resolved(given).get("model")
    config = model_in({"model": model} if isinstance(model, Mapping) else {})
    return "" if config.source is None or config.source.is_here else config.source.path


NONE = "-"
"""Shown for a value that one of the two lacks."""
THERE = "there"
"""Shown for an environment that only one of the two has."""
Row = tuple[str, str, str, str]
"""A key, its value in the first and in the second configuration, and what its change is."""


def differences(first: ResolvedFile, second: ResolvedFile) -> list[str]:
    """Return a table of the differences with the kind of each change, and whether the second is another run."""
    rows = difference_rows(first, second)
    if not rows:
        return ["nothing differs"]
    table = [("setting", str(first.path), str(second.path), "change"), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
    other = [key for key, _, _, kind in rows if kind == Kind.IDENTITY.value]
    end = f"another run: {len(other)} of {len(rows)} are identity" if other else "no other run: none is identity"
    return [*lines, end]


def difference_rows(first: ResolvedFile, second: ResolvedFile) -> list[Row]:
    """Return each setting that differs, but for the record of the profile's choices.

    For an instance of a stage, omit differences that its stage has already. An environment that only one has is one line.
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
    """Return the values of a file by dotted key: of `stages` the names, of an environment that only it has that it is there."""
    kept = {name: value for name, value in file.values.items() if name in other.values and name != "chosen"}
    envs = {name: env if name in other.values["envs"] else THERE for name, env in file.values["envs"].items()}
    return flat({**kept, "stages": ", ".join(one.name for one in file.instances), "envs": envs})


def flat(values: Mapping[str, Any]) -> dict[str, str]:
    return dict(_flat(values, ""))


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value_text(value)

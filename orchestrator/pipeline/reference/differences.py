"""What differs between two configurations, setting by setting, with all that their runs would have."""

from collections.abc import Iterator, Mapping
from typing import Any

from temper.envs.core.setting import Kind, kind_of
from temper.orchestrator.config.described import value_text
from temper.orchestrator.pipeline.config import KINDS
from temper.orchestrator.pipeline.reference.resolved_file import ResolvedFile

NONE = "-"
"""Stands for what one of the two has not."""
THERE = "there"
"""Stands for an environment that only one of the two has."""
Row = tuple[str, str, str, str]
"""A key, its value in the first and in the second configuration, and what its change is."""


def differences(first: ResolvedFile, second: ResolvedFile) -> list[str]:
    """Return lines that say what differs, with the kind of each change, and whether the second is another run."""
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
    """Return each setting that differs; of an instance of a stage where the settings of its stage don't say it already.

    An environment that only one has is one line, and an instance that only one has none, which `stages` tells. The record of
    what a profile chose is left out: the settings that were chosen are compared.
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
    """Return nested values by dotted key, each on one line."""
    return dict(_flat(values, ""))


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value_text(value)

"""One setting explained: what it is, what it is worth in a file and why, who reads it, what a change of it means."""

import textwrap
from pathlib import Path

from temper.envs.core.setting import Kind
from temper.orchestrator.config.described import Setting, value_text
from temper.orchestrator.pipeline.profiles.asked import CHOSEN, found
from temper.orchestrator.pipeline.reference.catalog import NamedSetting, below, named_setting
from temper.orchestrator.pipeline.reference.origin import origin, stands
from temper.orchestrator.pipeline.reference.readers import readers_in_words
from temper.orchestrator.pipeline.reference.resolved_file import ResolvedFile, resolve

CHANGES = {
    Kind.IDENTITY: "another run: a run that has trained refuses it; fork the run, or choose another name",
    Kind.SCHEDULE: "the same run goes on, and records the change",
    Kind.RUNNING: "the same run goes on; it says how the work is done, not what comes of it",
}
"""What a change of a setting means to a run that goes on."""
WIDTH = 120


def explain(key: str, path: Path | None, overrides: list[str]) -> list[str]:
    """Return lines about a setting, or about all settings of a section; with a file about its values there too.

    Raise `ValueError` with the nearest keys where there is no such setting, and as `resolve` for the file.
    """
    return explained(key, None if path is None else resolve(path, overrides, settles=_may_be_chosen(key)))


def _may_be_chosen(key: str) -> bool:
    """Return whether a profile may choose a setting, or one in a section, of any instance of a stage."""
    first, *rest = key.split(".")
    return not rest or first == "chosen" or any(one.split(".")[1 : len(rest) + 1] == rest for one in CHOSEN)


def explained(key: str, file: ResolvedFile | None) -> list[str]:
    """Return the same of a file that is resolved."""
    named = named_setting(key, {} if file is None else {one.name: one.stage.name for one in file.instances})
    setting = named.setting
    if setting.is_section:
        lines = [*_laid_out("section", setting.meaning), *_read_by(setting), *_inside(named, file)]
        return [named.key, *lines]
    chosen = f"{setting.default_text}, or what the profile chooses by hardware and model (docs/hardware.md)"
    default = chosen if setting.key in CHOSEN else setting.default_text
    said = {"type": setting.type, "default": default, "unit": setting.unit}
    lines = [line for name, text in said.items() if text for line in _laid_out(name, text)]
    lines += [line for text in _values(named, file) for line in _laid_out("value", text)]
    if file is not None and setting.key in CHOSEN and not stands(file.given, named.key):
        lines += _laid_out("note", file.note)
    lines += _laid_out("meaning", setting.meaning)
    if setting.kind is not None:
        lines += _laid_out("change", f"{setting.kind.value}: {CHANGES[setting.kind]}")
    return [named.key, *lines, *_read_by(setting), *_inside(named, file)]


def _values(named: NamedSetting, file: ResolvedFile | None) -> list[str]:
    """Return what the setting is worth in a file, and where that comes from; of `envs.*` for each environment."""
    if file is None:
        return []
    keys = [named.key.replace("*", name, 1) for name in file.values["envs"]] if "*" in named.key else [named.key]
    lines = []
    for key in keys:
        shown = f"{key}: " if len(keys) > 1 else ""
        if stands(file.values, key):
            lines.append(f"{shown}{value_text(found(file.values, key))} ({origin(key, file)})")
        else:
            lines.append(f"{shown}none ({key.rpartition('.')[0]} has no such entry)")
    return lines


def _inside(named: NamedSetting, file: ResolvedFile | None) -> list[str]:
    """Return a line for each setting of a section: its key, its value, by default or in the file, and what it means."""
    parts = below(named.setting)
    if not parts:
        return []
    of_all = named.setting.shape == "each" and named.key == named.setting.key
    keys = [one.key if of_all else f"{named.key}.{one.name}" for one in parts]
    values = [_value_inside(one, key, file) for one, key in zip(parts, keys, strict=True)]
    widths = max(map(len, keys)), max(map(len, values))
    rows = zip(keys, values, parts, strict=True)
    lines = [f"  {key:<{widths[0]}}  {value:<{widths[1]}}  {one.meaning}" for key, value, one in rows]
    what = "by default" if file is None else f"in {file.path}"
    return ["", f"  values {what}:", *(_cut(line) for line in lines)]


def _value_inside(setting: Setting, key: str, file: ResolvedFile | None) -> str:
    """Return the value of a setting in a table, on little room."""
    if setting.is_section:
        return "section"
    given = file is not None and stands(file.values, key)
    return _cut(value_text(found(file.values, key)) if file and given else setting.default_text, width=30)


def _cut(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else f"{text[: width - 4].rstrip()} ..."


def _read_by(setting: Setting) -> list[str]:
    return _laid_out("read by", readers_in_words(setting.key))


def _laid_out(name: str, text: str) -> list[str]:
    margin = " " * 12
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {name:<10}", subsequent_indent=margin, break_on_hyphens=False)

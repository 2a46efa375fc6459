"""One setting explained: its type, default and meaning, its value in a file and the origin of the value, the stages that
read it, and the effect of a change.
"""

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from temper.envs.core.setting import Kind
from temper.orchestrator.pipeline.profiles.asked import CHOSEN, found
from temper.orchestrator.pipeline.reference.resolved_file import ResolvedFile, resolve
from temper.orchestrator.pipeline.reference.settings import NamedSetting, Setting, below, named_setting, value_text
from temper.orchestrator.stages.stage import Role, Stage, all_stages

CHANGES = {
    Kind.IDENTITY: "another run: a run that has trained refuses it; fork the run, or choose another name",
    Kind.SCHEDULE: "the same run goes on, and records the change",
    Kind.RUNNING: "the same run goes on; it says how the work is done, not what comes of it",
}
"""What a change of a setting means to a run that goes on."""
WIDTH = 120


def explain(key: str, path: Path | None, overrides: list[str]) -> list[str]:
    """Return lines about a setting or a section; with a file about its values there too.

    Raise `ValueError` with the nearest keys for an unknown setting, and as `resolve` for the file.
    """
    return explained(key, None if path is None else resolve(path, overrides, settles=_may_be_chosen(key)))


def _may_be_chosen(key: str) -> bool:
    """Return whether a profile may choose a setting, or one in a section, of any instance of a stage."""
    first, *rest = key.split(".")
    return not rest or first == "chosen" or any(one.split(".")[1 : len(rest) + 1] == rest for one in CHOSEN)


def explained(key: str, file: ResolvedFile | None) -> list[str]:
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
    """Return the value of the setting in a file, and its origin; of `envs.*` for each environment."""
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
    """Return a line for each setting of a section: key, value and meaning."""
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


def origin(key: str, file: ResolvedFile) -> str:
    if above := _layer(key, file):
        return above
    first, _, rest = key.partition(".")
    instance = next((one for one in file.instances if one.name == first), None)
    if instance is None:
        return _shared_origin(key, file)
    if stands(instance.given, rest):
        return f"{_layer('stages', file) or file.path}, in its entry of `stages`"
    general = f"{instance.stage.name}.{rest}"
    return _shared_origin(key, file) if general == key else f"as {general}: {origin(general, file)}"


def _layer(key: str, file: ResolvedFile) -> str:
    return next((name for name, given in reversed(file.layers) if stands(given, key)), "")


def _shared_origin(key: str, file: ResolvedFile) -> str:
    chosen = file.chosen
    by_profile = f"profile {chosen.profile} ({chosen.hardware})"
    if stands(file.given, key):
        recorded = "chosen" in file.given and key in chosen.settings
        return f"{by_profile}, recorded in {file.path}" if recorded else str(file.path)
    if key in chosen.settings:
        return by_profile
    if stands(file.whole, key) and key.startswith("envs."):
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


def _all(stage: Stage[Any]) -> bool:
    return True


def _plays(stage: Stage[Any]) -> bool:
    """Return whether a stage may play episodes."""
    return stage.first_ticket is not None


def _begins(stage: Stage[Any]) -> bool:
    return stage.role is Role.BEGIN


def _trains(stage: Stage[Any]) -> bool:
    return stage.trains


def _computes(stage: Stage[Any]) -> bool:
    """Return whether a stage has processes that generate or train."""
    return stage.trains or stage.first_ticket is not None


READERS: dict[str, Callable[[Stage[Any]], bool]] = {
    "name": _all,
    "profile": _all,
    "chosen": _all,
    "seed": _all,
    "runs_dir": _all,
    "stages": _all,
    "placement": _all,
    "envs": _computes,
    "model": _begins,
    "rollout": _plays,
    "learner": _trains,
    "sandbox": _plays,
    "tracking": _all,
    "checkpoints": _trains,
    "deadlines": _computes,
    "supervision": _computes,
}
"""By the first word of a key, the stages that read what all stages share."""


def readers(key: str) -> list[str]:
    first = key.partition(".")[0]
    stages = all_stages()
    return [first] if first in stages else [name for name, stage in stages.items() if READERS[first](stage)]


def readers_in_words(key: str) -> str:
    names = readers(key)
    return "every stage" if len(names) == len(all_stages()) else ", ".join(names)

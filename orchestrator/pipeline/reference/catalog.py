"""All settings by their keys, as people name them: with the name of an environment, or of an instance of a stage."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import get_origin

from temper.orchestrator.config.described import Setting, described
from temper.orchestrator.pipeline.config import SCHEMA

NEAREST = 5
"""How many keys are proposed for one that there is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSetting:
    """A setting under the key by which somebody named it."""

    key: str
    """As it was named: `envs.math.share`, `rl_tools.steps`, `rl.shares.math`."""
    setting: Setting


@cache
def all_settings() -> dict[str, Setting]:
    """Return all settings and sections of a run by their dotted keys, in the order in which they are declared."""
    return {one.key: one for one in described(SCHEMA)}


def below(setting: Setting) -> list[Setting]:
    """Return what stands in a section, without the insides of sections in it; [] for a plain setting."""
    within = f"{setting.key}.*" if setting.shape == "each" else setting.key
    return [one for one in all_settings().values() if one.section == within] if setting.part is not None else []


def named_setting(key: str, stages: Mapping[str, str]) -> NamedSetting:
    """Return the setting of a key; `stages` says which stage each named instance is of.

    Raise `ValueError` with the nearest keys where there is none.
    """
    first, dot, rest = key.partition(".")
    general = f"{stages.get(first, first)}{dot}{rest}"
    words = general.split(".")
    found = next((one for one in all_settings().values() if _fits(one, words)), None)
    if found is None:
        near = nearest(general)
        hint = f"nearest: {', '.join(near)}" if near else "docs/settings.md has all of them"
        raise ValueError(f"there is no setting {key}; {hint}")
    return NamedSetting(key=key, setting=found)


def _fits(setting: Setting, words: list[str]) -> bool:
    """Return whether a setting has this key, or a key inside of it: of one of a kind, or where it holds whatever is given."""
    own = setting.key.split(".")
    more = len(words) - len(own)
    alike = more >= 0 and all(one in ("*", word) for one, word in zip(own, words, strict=False))
    return alike and (more == 0 or _is_open(setting) or (more == 1 and setting.shape == "each" and setting.is_section))


def _is_open(setting: Setting) -> bool:
    return setting.part is None and get_origin(setting.hint) is dict


def nearest(key: str) -> list[str]:
    """Return the keys that are most like one: as a whole, or in their last words."""
    keys = list(all_settings())
    last = key.rpartition(".")[2]
    ends = {one: one.rpartition(".")[2] for one in keys}
    alike = get_close_matches(last, sorted(set(ends.values())), n=1, cutoff=0.75)
    return _firsts([*get_close_matches(key, keys, n=3, cutoff=0.75), *(one for one in keys if ends[one] in alike)])


def _firsts(keys: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(keys))[:NEAREST]

"""Every setting of a configuration with key, type, default, meaning, unit and kind of change, from its dataclass."""

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from temper.envs.core.setting import Kind, Shape, field_hints, kind_of, kinds, part_of, unit_of
from temper.orchestrator.config.keys import peer_key
from temper.orchestrator.pipeline.config import SCHEMA

REQUIRED = "required"
NEAREST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, or a section of settings."""

    key: str
    """Its dotted key. `*` is a key of the user."""
    owner: type
    """The dataclass whose field it is."""
    hint: Any
    part: type | None
    """The dataclass of the settings that it contains, None for a plain setting."""
    shape: Shape
    default: Any
    """The default; `MISSING` for a required setting, and for a section whose settings have the defaults."""
    meaning: str
    """The text under the field, else the docstring of `part`."""
    unit: str
    """The unit of a number; "" for a count and any other type."""
    kind: Kind | None
    """The effect of a change on a resumed run; None for a section, whose settings have their kinds."""

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def is_section(self) -> bool:
        """Whether it always contains all its settings."""
        return self.part is not None and self.shape != "maybe"

    @property
    def type(self) -> str:
        return type_in_words(self.hint)

    @property
    def default_text(self) -> str:
        """The default in YAML; "" for a section."""
        if self.default is MISSING:
            return "" if self.is_section else REQUIRED
        return value_text(self.default)


@cache
def all_settings() -> dict[str, Setting]:
    return {one.key: one for one in settings_in(SCHEMA)}


def settings_in(schema: type) -> list[Setting]:
    """Return all settings and sections of a dataclass. Raise `ValueError` for a setting without a kind."""
    return list(_walk(schema, "", None, kinds(schema)))


def _walk(owner: type, prefix: str, values: Any, known: Mapping[str, Kind]) -> Iterator[Setting]:
    hints, texts = field_hints(owner), field_texts(owner)
    for each in fields(owner):
        key, hint = f"{prefix}{each.name}", hints[each.name]
        part, shape = part_of(hint)
        default = _default(each) if values is None else vars(values)[each.name]
        whole = part is not None and shape != "maybe"
        yield Setting(
            key=key,
            owner=owner,
            hint=hint,
            part=part,
            shape=shape,
            default=MISSING if whole else default,
            meaning=texts.get(each.name) or (class_text(part) if part is not None else ""),
            unit=unit_of(each),
            kind=None if whole else kind_of(known, key),
        )
        if part is not None:
            below = f"{key}.*." if shape == "each" else f"{key}."
            yield from _walk(part, below, default if shape == "one" else None, known)


def _default(each: "Field[Any]") -> Any:
    return each.default_factory() if each.default_factory is not MISSING else each.default


@cache
def field_texts(config: type) -> dict[str, str]:
    """Return the text under each field of a dataclass on one line, with inherited ones."""
    texts: dict[str, str] = {}
    for base in reversed(config.__mro__):
        written = _source(base) if is_dataclass(base) else None
        for field, below in pairwise(written.body if written else []):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                    texts[name] = " ".join(text.split())
    return texts


def class_text(config: type) -> str:
    """Return the first paragraph of a dataclass's docstring on one line; "" without one."""
    written = _source(config)
    text = ast.get_docstring(written) if written is not None else None
    return " ".join((text or "").split("\n\n")[0].split())


def _source(config: type) -> ast.ClassDef | None:
    tree = _tree(config.__module__) if "__file__" in vars(sys.modules[config.__module__]) else ast.Module([], [])
    return next((one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == config.__name__), None)


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))


def value_text(value: Any) -> str:
    return value if isinstance(value, str) and value.strip() == value != "" else json.dumps(value)


def type_in_words(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal or origin in (Union, UnionType):
        words = list(_choices(hint))
        return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)
    if origin in (list, dict):
        return f"{origin.__name__}[{', '.join(map(type_in_words, parts))}]"
    if hint is Any:
        return "any"
    assert isinstance(hint, type), hint
    return "settings" if is_dataclass(hint) else hint.__name__


def _choices(hint: Any) -> Iterator[str]:
    if get_origin(hint) is Literal:
        yield from map(str, get_args(hint))
    elif get_origin(hint) in (Union, UnionType):
        for one in get_args(hint):
            yield from _choices(one)
    else:
        yield "null" if hint is NoneType else type_in_words(hint)


def below(setting: Setting) -> list[Setting]:
    within = f"{setting.key}.*" if setting.shape == "each" else setting.key
    return [one for one in all_settings().values() if one.section == within] if setting.part is not None else []


def named_setting(key: str, stages: Mapping[str, str]) -> Setting:
    """Return the setting of a key such as `envs.math.share`. `stages` maps each instance to the name of its stage.

    Raise `ValueError` with the nearest keys for an unknown key.
    """
    first, dot, rest = key.partition(".")
    general = f"{stages.get(first, first)}{dot}{rest}"
    words = general.split(".")
    found = next((one for one in all_settings().values() if _fits(one, words)), None)
    if found is None:
        near = nearest(general)
        hint = f"nearest: {', '.join(near)}" if near else "docs/settings.md has all of them"
        if new := peer_key(key, there=list(all_settings())):
            hint = f"use {new}"
        raise ValueError(f"there is no setting {key}; {hint}")
    return found


def _fits(setting: Setting, words: list[str]) -> bool:
    """Return whether a setting has this key or contains it, as a section with the user's keys or as an open mapping."""
    own = setting.key.split(".")
    more = len(words) - len(own)
    alike = more >= 0 and all(one in ("*", word) for one, word in zip(own, words, strict=False))
    is_open = setting.part is None and get_origin(setting.hint) is dict
    return alike and (more == 0 or is_open or (more == 1 and setting.shape == "each" and setting.is_section))


def nearest(key: str) -> list[str]:
    """Return the most similar keys: as a whole, or in their last words."""
    keys = list(all_settings())
    ends = {one: one.rpartition(".")[2] for one in keys}
    alike = get_close_matches(key.rpartition(".")[2], sorted(set(ends.values())), n=1, cutoff=0.75)
    found = [*get_close_matches(key, keys, n=3, cutoff=0.75), *(one for one in keys if ends[one] in alike)]
    return list(dict.fromkeys(found))[:NEAREST]

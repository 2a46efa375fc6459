"""Every setting of a configuration as people are told of it: its key, type, default, meaning, unit and kind of change.

All of it stands in the dataclasses that hold the settings; this walks over them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from temper.envs.core.setting import Kind, kind_of, kinds
from temper.orchestrator.config.field_text import class_text, field_texts

REQUIRED = "required"
"""Stands for the default of a setting that must be given."""
UNITS = (
    (re.compile(r"\bin seconds\b|^(The s|S)econds\b"), "seconds"),
    (re.compile(r"\bGiB\b"), "GiB"),
    (re.compile(r"\b[Mm]egabytes a second\b"), "MB/s"),
    (re.compile(r"\bin tokens\b|^(Tokens|(Most|Over this many|How many) tokens)\b"), "tokens"),
    (re.compile(r"\b[Cc]haracters\b"), "characters"),
    (re.compile(r"^(Optimiser s|S)teps(?! of it)\b"), "steps"),
    (re.compile(r"(^|: )(Highest |Relative )?[Ss]hares? (of|that|whose)\b|\bas (a share|shares) of\b"), "share"),
)
"""What the line under a field says of its unit. Where several fit, it is the one that is named first."""
WHOLE = ("tokens", "characters", "steps")
"""Units of whole numbers alone."""
Shape = Literal["one", "maybe", "each"]
"""How a field holds a configuration: one, one or null, or one for each key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, or a section of settings."""

    key: str
    """Its dotted key; `*` stands for the keys that the user chooses."""
    owner: type
    """The dataclass whose field it is."""
    hint: Any
    """The type that the field declares."""
    part: type | None
    """The dataclass of the settings that it holds; None for a plain setting."""
    shape: Shape
    """How it holds them."""
    default: Any
    """The default; `MISSING` where it must be given, or where its parts have the defaults."""
    meaning: str
    """What the text under the field says, else that under the head of `part`."""
    kind: Kind | None
    """What a change means to a run that goes on; None for a section, whose settings say it."""

    @property
    def section(self) -> str:
        """The key of the section that it stands in; "" for the settings of the run."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The last word of its key."""
        return self.key.rpartition(".")[2]

    @property
    def is_section(self) -> bool:
        """Whether it is there with all its settings."""
        return self.part is not None and self.shape != "maybe"

    @property
    def type(self) -> str:
        """What may be given, in words."""
        return type_in_words(self.hint)

    @property
    def default_text(self) -> str:
        """The default as YAML has it; "" for a section."""
        if self.default is MISSING:
            return "" if self.is_section else REQUIRED
        return value_text(self.default)

    @property
    def unit(self) -> str:
        """The unit of a number, as the text under the field names it; "" for what has none, a count, or no number."""
        types = set(_plain_types(self.hint))
        units = [one for one in UNITS if int in types or (float in types and one[1] not in WHOLE)]
        found = [(match.start(), unit) for pattern, unit in units if (match := pattern.search(self.meaning))]
        return min(found)[1] if found else ""


def described(schema: type) -> list[Setting]:
    """Return all settings and sections of a configuration, in the order in which they are declared.

    Raise `ValueError` for a setting that declares no kind.
    """
    return list(_walk(schema, "", None, kinds(schema)))


def _walk(owner: type, prefix: str, values: Any, known: Mapping[str, Kind]) -> Iterator[Setting]:
    hints, texts = get_type_hints(owner), field_texts(owner)
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
            kind=None if whole else kind_of(known, key),
        )
        if part is not None:
            below = f"{key}.*." if shape == "each" else f"{key}."
            yield from _walk(part, below, default if shape == "one" else None, known)


def part_of(hint: Any) -> tuple[type | None, Shape]:
    """Return the dataclass that a field of this type holds, if it holds one, and how."""
    if isinstance(hint, type) and is_dataclass(hint):
        return hint, "one"
    found = next((one for one in get_args(hint) if isinstance(one, type) and is_dataclass(one)), None)
    return found, "each" if get_origin(hint) is dict else "maybe"


def _default(each: "Field[Any]") -> Any:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def value_text(value: Any) -> str:
    """Return a value as YAML has it on one line."""
    return value if isinstance(value, str) and value.strip() == value != "" else json.dumps(value)


def type_in_words(hint: Any) -> str:
    """Return what a field of this type may be given, in words."""
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
    """Return what a type leaves to choose from, in words."""
    if get_origin(hint) is Literal:
        yield from map(str, get_args(hint))
    elif get_origin(hint) in (Union, UnionType):
        for one in get_args(hint):
            yield from _choices(one)
    else:
        yield "null" if hint is NoneType else type_in_words(hint)


def _plain_types(hint: Any) -> Iterator[Any]:
    """Return the types that a type is made of, without the keys of a dict."""
    if get_origin(hint) is Literal:
        return
    parts = get_args(hint)
    if not parts:
        yield hint
    for one in parts[1:] if get_origin(hint) is dict else parts:
        yield from _plain_types(one)

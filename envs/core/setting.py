"""Kinds of settings: every configuration field declares the effect of a change on a resumed run.

    seed: int = immutable(1)             a change makes another run: the model, the data, the losses
    steps: int = scheduled(300)          may change, and the change is recorded: lengths, rates, mixtures
    timeout_s: float = free(120.0)       may change: time-outs, memory, workers, threads, intervals, tracking

A nested configuration needs no kind: its fields declare theirs. If it declares one, it applies to all of them. For an
optional one, the kind applies to adding or removing it. Lists and dicts may be defaults.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
Unit = Literal["", "seconds", "GiB", "MB/s", "tokens", "characters", "steps", "share"]
"""The unit of a number, "" for a count or a number without a unit."""
LARGEST = 2.0**63
"""No number of a setting is larger, since libraries keep 64 bits."""
LONGEST_S = 1e9
"""Most seconds of a setting. Timers of Python overflow after three centuries."""
KIND, UNIT = "kind", "unit"
"""Keys of a field's metadata."""
Shape = Literal["one", "maybe", "each"]
"""Shape of a field with a section: one, one or null, or one for each key."""


class Kind(Enum):
    """The effect of a change of a setting on a resumed run."""

    IMMUTABLE = "immutable"  # another run
    SCHEDULE = "schedule"  # the same run, which records the change
    FREE = "free"  # the same run


def immutable(default: T, *, unit: Unit = "") -> T:
    """Declare a setting that a run can't change."""
    return _setting(default, Kind.IMMUTABLE, unit)


def scheduled(default: T, *, unit: Unit = "") -> T:
    """Declare a setting that may change during a run. The change is recorded."""
    return _setting(default, Kind.SCHEDULE, unit)


def free(default: T, *, unit: Unit = "") -> T:
    """Declare a setting without effect on the result."""
    return _setting(default, Kind.FREE, unit)


def required(kind: Kind, *, unit: Unit = "") -> dict[str, Kind | Unit]:
    """Return the metadata of a field without a default: `name: str = field(metadata=required(Kind.FREE))`."""
    return {KIND: kind, UNIT: unit}


def _setting(default: Any, kind: Kind, unit: Unit) -> Any:
    """Return a dataclass field, typed as its default so that type checkers see a plain value."""
    metadata = required(kind, unit=unit)
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def unit_of(each: "Field[Any]") -> str:
    return str(each.metadata.get(UNIT, ""))


def bounds_of(unit: str, *, counts: bool) -> tuple[float, float]:
    """Return the least and the largest number of any setting with this unit. A count or a quantity is not negative."""
    return 0.0 if counts or unit else -LARGEST, LONGEST_S if unit == "seconds" else LARGEST


@cache
def field_hints(config: type) -> dict[str, Any]:
    """Return the type of each field of a dataclass by its name."""
    hints = get_type_hints(config)
    return {each.name: hints[each.name] for each in fields(config)}


def part_of(hint: Any) -> tuple[type | None, Shape]:
    """Return the dataclass in a field of this type, if any, and its shape."""
    if isinstance(hint, type) and is_dataclass(hint):
        return hint, "one"
    found = next((one for one in get_args(hint) if isinstance(one, type) and is_dataclass(one)), None)
    return found, "each" if get_origin(hint) is dict else "maybe"


def kinds(config: type) -> dict[str, Kind]:
    """Return the kind of each setting by its dotted name. `*` stands for any key of a dict of configurations."""
    return dict(_kinds(config, ""))


def kind_of(known: Mapping[str, Kind], key: str) -> Kind:
    """Return the kind of a dotted key from the result of `kinds`. A key inside a setting has the setting's kind."""
    words = key.split(".")
    for count in range(len(words), 0, -1):
        for place in range(count + 1):
            name = ".".join("*" if number == place else word for number, word in enumerate(words[:count]))
            if name in known:
                return known[name]
    return Kind.IMMUTABLE


def _kinds(config: type, prefix: str) -> Iterator[tuple[str, Kind]]:
    hints = field_hints(config)
    for each in fields(config):
        name = f"{prefix}{each.name}"
        part, shape = part_of(hints[each.name])
        if part is None or shape == "maybe":
            yield name, _declared(each, name)
        if part is not None:
            declared = each.metadata.get(KIND) if shape == "one" else None
            below = f"{name}.*." if shape == "each" else f"{name}."
            yield from ((key, declared or kind) for key, kind in _kinds(part, below))


def _declared(each: "Field[Any]", name: str) -> Kind:
    kind = each.metadata.get(KIND)
    if not isinstance(kind, Kind):
        like = "..." if each.default is MISSING else repr(each.default)
        raise ValueError(f"{name} declares no kind; write immutable({like}), scheduled({like}) or free({like})")
    return kind

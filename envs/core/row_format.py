"""The row formats of public data sets: how a row is recognised and made a task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from temper.envs.core.task import Task

Row = dict[str, Any]
T = TypeVar("T")


class LeftOut(ValueError):
    """A sound row that makes no task worth playing: it is skipped and counted, even if bad rows raise."""


def field(row: Row, name: str, kind: type[T]) -> T:
    """Return the field `name` of a row. Raise `ValueError` if it is missing or of another type."""
    if name not in row:
        raise ValueError(f"field {name!r} is missing; the row has {sorted(row)}")
    value = row[name]
    if not isinstance(value, kind):
        raise ValueError(f"field {name!r} must be {kind.__name__}, not {type(value).__name__}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """One format: `load` makes a task of a row that `matches`. It raises ValueError for a broken row, LeftOut for no task."""

    name: str
    matches: Callable[[Row], bool]
    load: Callable[[Row], Task]


@dataclass(frozen=True, slots=True)
class HasFields:
    """Match a row that has all these fields."""

    names: tuple[str, ...]

    def __call__(self, row: Row) -> bool:
        return all(name in row for name in self.names)


def has_fields(*names: str) -> HasFields:
    return HasFields(names)


def own_id(row: Row) -> str | int | None:
    """Return the data set's own id of a row: `task_id`, else `id`, or None if it has neither."""
    for name in ("task_id", "id"):
        if isinstance(row.get(name), str | int):
            return row[name]
    return None


def load_row(formats: Sequence[RowFormat], row: Row, *, name: str | None = None) -> Task:
    """Return the task of a row, by the format of this name, else by the first that matches."""
    if name is not None:
        named = [known for known in formats if known.name == name]
        if not named:
            raise ValueError(f"no row format {name!r} here; there are {', '.join(known.name for known in formats)}")
        return named[0].load(row)
    for known in formats:
        if known.matches(row):
            return known.load(row)
    names = ", ".join(known.name for known in formats)
    raise ValueError(
        f"the row is of no known format ({names}); it has the fields {sorted(row)}; rename them in the settings of the data "
        f"with {columns_line(formats, row)}"
    )


LIKELY = {
    "question": ("problem", "prompt", "query", "instruction", "input", "text"),
    "answer": ("solution", "target", "output", "response", "completion", "label"),
}
"""Words in the names of fields that data sets use for a needed field."""


def columns_line(formats: Sequence[RowFormat], row: Row) -> str:
    """Return the setting `columns` that makes a row match the first format that names its fields."""
    needed = next(
        (known.matches.names for known in formats if isinstance(known.matches, HasFields)), ("question", "answer")
    )
    left = {name.lower(): name for name in row if name not in needed}
    pairs = [f"{name}: {_likely(name, left)}" for name in needed if name not in row]
    return f"`columns: {{{', '.join(pairs)}}}`"


def _likely(needed: str, left: Mapping[str, str]) -> str:
    """Return the field, of those by their lower-case names, that probably holds the needed one; else a placeholder."""
    words = (needed, *LIKELY.get(needed, ()))
    return next((left[name] for word in words for name in left if word in name), f"NAME_OF_{needed.upper()}")

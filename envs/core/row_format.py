"""The row formats of public data sets: how a row is recognised and made a task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from temper.envs.core.task import Task

Row = dict[str, Any]
T = TypeVar("T")


class LeftOut(ValueError):
    """A sound row that makes no task worth playing: it is skipped and counted, even if bad rows raise."""


def field(row: Row, name: str, kind: type[T]) -> T:
    """Return the field `name` of a row. Raise `ValueError` where it is missing or of another type."""
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


def has_fields(*names: str) -> Callable[[Row], bool]:
    return lambda row: all(name in row for name in names)


def own_id(row: Row) -> str | int | None:
    """Return the data set's own id of a row: `task_id`, else `id`; None where it has neither."""
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
        f"the row is of no known format ({names}); it has the fields {sorted(row)}, which the setting `columns` of the data "
        f"renames"
    )

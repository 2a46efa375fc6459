"""Row formats of public data sets: detection, and conversion to tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from temper.envs.core.task import Task

Row = dict[str, Any]
T = TypeVar("T")


class LeftOut(ValueError):
    """A valid row without a usable task. It is skipped and counted even if bad rows raise."""


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
    """One format. `load` makes a task of a row that `matches`. It raises `ValueError` for a bad row, `LeftOut` for one
    without a task.
    """

    name: str
    matches: Callable[[Row], bool]
    load: Callable[[Row], Task]


@dataclass(frozen=True, slots=True)
class HasFields:
    """Matches rows with all these fields."""

    names: tuple[str, ...]

    def __call__(self, row: Row) -> bool:
        return all(name in row for name in self.names)


def has_fields(*names: str) -> HasFields:
    return HasFields(names)


def own_id(row: Row) -> str | int | None:
    """Return the id of a row in its data set: `task_id`, otherwise `id`, or None if it has neither."""
    for name in ("task_id", "id"):
        if isinstance(row.get(name), str | int):
            return row[name]
    return None


def load_row(formats: Sequence[RowFormat], row: Row, *, name: str | None = None) -> Task:
    """Return the task of a row, by the named format or the first that matches."""
    if name is not None:
        named = [known for known in formats if known.name == name]
        if not named:
            raise ValueError(f"unknown row format {name!r}; use one of {', '.join(known.name for known in formats)}")
        return named[0].load(row)
    for known in formats:
        if known.matches(row):
            return known.load(row)
    names = ", ".join(known.name for known in formats)
    raise ValueError(
        f"the row has the fields {sorted(row)}, which match no known format ({names}); rename them in the data settings "
        f"with {columns_line(formats, row)}"
    )


LIKELY = {
    "question": ("problem", "prompt", "query", "instruction", "input", "text"),
    "answer": ("solution", "target", "output", "response", "completion", "label"),
}
"""Words in the field names that data sets use for a needed field."""


def columns_line(formats: Sequence[RowFormat], row: Row) -> str:
    """Return the setting `columns` that makes a row match the first format that names its fields."""
    needed = next(
        (known.matches.names for known in formats if isinstance(known.matches, HasFields)), ("question", "answer")
    )
    left = {name.lower(): name for name in row if name not in needed}
    pairs = [f"{name}: {_likely(name, left)}" for name in needed if name not in row]
    return f"`columns: {{{', '.join(pairs)}}}`"


def _likely(needed: str, left: Mapping[str, str]) -> str:
    """Return the field that probably holds the needed one, or a placeholder. `left` maps lower-case names to fields."""
    words = (needed, *LIKELY.get(needed, ()))
    return next((left[name] for word in words for name in left if word in name), f"NAME_OF_{needed.upper()}")

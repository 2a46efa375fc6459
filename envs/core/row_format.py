"""Row formats of public data sets: detection, and conversion to tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from temper.envs.core.messages import is_messages, join_system, read_prompt, with_system
from temper.envs.core.row_fields import PROMPT_FIELDS, refuse_fields
from temper.envs.core.task import Message, Task

Row = dict[str, Any]
QUESTIONS = ("question", "problem", "prompt", "input", "question_stem", "Question")
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
    questions: tuple[str, ...] = QUESTIONS
    """Fields that may hold the question, in order of preference: a text, or messages that end with the user's. `load` gets
    the text of the last one. Empty if `load` reads messages itself.
    """


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
    """Return the task of a row, by the named format or the first that matches.

    The messages before a question, and the system text of the row's column, come first in its prompt.
    """
    known = _format_of(formats, row, name)
    refuse_fields(row, PROMPT_FIELDS, "the row")
    head, row = _split_question(row, known.questions)
    task = known.load(row)
    messages = tuple(with_system(join_system(head, task.messages, name="the row"), row))
    return task if messages == task.messages else replace(task, messages=messages)


def _format_of(formats: Sequence[RowFormat], row: Row, name: str | None) -> RowFormat:
    if name is not None:
        named = [known for known in formats if known.name == name]
        if not named:
            raise ValueError(f"unknown row format {name!r}; use one of {', '.join(known.name for known in formats)}")
        return named[0]
    for known in formats:
        if known.matches(row):
            return known
    names = ", ".join(known.name for known in formats)
    needed = next(
        (known.matches.names for known in formats if isinstance(known.matches, HasFields)), ("question", "answer")
    )
    raise ValueError(
        f"the row has the fields {sorted(row)}, which match no known format ({names}); rename them in the data settings "
        f"with {columns_line(needed, row)}"
    )


def _split_question(row: Row, questions: Sequence[str]) -> tuple[list[Message], Row]:
    """Return the messages before the last of a row's question, and the row with the text of that one."""
    name = next((name for name in questions if row.get(name) is not None), None)
    if name is None or not is_messages(row[name]):
        return [], row
    *head, last = read_prompt(row[name], name=name)
    return head, row | {name: last["content"]}


ASKED = ("question", "problem", "prompt", "query", "instruction", "input", "text")
ANSWERED = ("ground_truth", "answer", "solution", "target", "output", "response", "completion", "label")
LIKELY = {"question": ASKED, "prompt": ASKED, "answer": ANSWERED, "completion": ANSWERED}
"""Words in the field names that data sets use for a needed field."""


def columns_line(needed: Sequence[str], row: Row) -> str:
    """Return the setting `columns` that gives a row the needed fields."""
    pairs = [f"{name}: {_likely(name, _names(row, needed))}" for name in needed if row.get(name) is None]
    return f"`columns: {{{', '.join(pairs)}}}`"


def _names(row: Row, needed: Sequence[str]) -> list[str]:
    """Return the names of the other fields, and of the entries of fields behind them."""
    left = [name for name in row if name not in needed]
    return left + [f"{name}.{inner}" for name in left if isinstance(row[name], dict) for inner in row[name]]


def _likely(needed: str, names: Sequence[str]) -> str:
    """Return the name of the field that probably holds the needed one, or a placeholder."""
    for nested in (False, True):
        for word in (*LIKELY.get(needed, ()), needed):
            for name in names:
                if ("." in name) == nested and word in name.rpartition(".")[2].lower():
                    return name
    return f"NAME_OF_{needed.upper()}"

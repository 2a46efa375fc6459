"""Row formats of public data sets: detection, and conversion to tasks."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from temper.envs.core.messages import is_messages, join_system, read_prompt, with_system
from temper.envs.core.row_fields import PROMPT_FIELDS, NotedRow, quote_value, refuse_fields
from temper.envs.core.task import Message, Task

Row = dict[str, Any]
IDS = ("task_id", "id")
QUESTIONS = ("question", "problem", "prompt", "input", "question_stem", "Question")
T = TypeVar("T")


class LeftOut(ValueError):
    """A valid row without a usable task. It is skipped and counted even if bad rows raise."""


class MissingField(ValueError):
    """A row lacks a needed field. A table may hold it as null."""


KINDS: Mapping[type, str] = {str: "be text", list: "be a list", dict: "be an object"}


def field(row: Row, name: str, kind: type[T]) -> T:
    """Return the field `name` of a row. Raise `ValueError` if it is missing, null or of another type."""
    if name not in row:
        raise MissingField(f"field {name!r} is missing; the row has {sorted(row)}")
    value = row[name]
    if not isinstance(value, kind) or value is None:
        raise ValueError(f"{name} is {quote_value(value)}; it must {KINDS.get(kind, 'have a value')}")
    return value


def read_json(text: str, name: str) -> Any:
    """Return the value of a field that holds JSON text. Raise `ValueError` with the field if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"field {name!r} is not valid JSON: {error}") from error


def gold(value: Any, name: str) -> str:
    """Return a right answer, a text or a number, as text. Raise `ValueError` with its field if no answer can equal it."""
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    if not text or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{name} is {quote_value(value)}; give the right answer, a text or a number")
    return text


def golds(value: Any, name: str) -> list[str]:
    """Return the accepted answers of a list, or of a single answer, once each. Empty ones are left out if there are others."""
    values = value if isinstance(value, list) else [value]
    filled = [one for one in values if not isinstance(one, str) or one.strip()]
    if not filled:
        raise ValueError(f"{name} is {quote_value(value)}; give an answer that is accepted")
    return list(dict.fromkeys(gold(one, name) for one in filled))


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
    """Matches rows with all these fields, or with any of them."""

    names: tuple[str, ...]
    how: Callable[[Iterable[object]], bool] = all

    def __call__(self, row: Row) -> bool:
        return self.how(name in row for name in self.names)


def has_fields(*names: str) -> HasFields:
    return HasFields(names)


def own_id(row: Row) -> str | int | None:
    """Return the id of a row in its data set: `task_id`, otherwise `id`, or None if it has neither."""
    for name in IDS:
        if isinstance(row.get(name), str | int):
            return row[name]
    return None


def load_row(formats: Sequence[RowFormat], row: Row, *, name: str | None = None, read: set[str] | None = None) -> Task:
    """Return the task of a row, by the named format or the first that matches. `read` gets the fields that are read.

    The messages before a question, and the system text of the row's column, come first in its prompt.
    """
    known = _format_of(formats, row, name)
    refuse_fields(row, PROMPT_FIELDS, "the row")
    head, row = _split_question(row, known.questions)
    row = NotedRow(row, set() if read is None else read)
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
    choices = [needed for known in formats if (needed := _needed(known))] or [("question", "answer")]
    raise MissingField(
        f"the row has the fields {sorted(row)}, which match no known format ({names}); rename them in the data settings "
        f"with {columns_line(choices, row)}"
    )


def _split_question(row: Row, questions: Sequence[str]) -> tuple[list[Message], Row]:
    """Return the messages before the last of a row's question, and the row with the text of that one."""
    name = next((name for name in questions if row.get(name) is not None), None)
    if name is None or not is_messages(row[name]):
        return [], row
    *head, last = read_prompt(row[name], name=name)
    return head, row | {name: last["content"]}


ASKED = ("question", "problem", "prompt", "query", "instruction", "input", "text")
GOLDS = ("truth", "answer", "solution", "target", "gold")
ANSWERED = (*GOLDS, "output", "result", "response", "completion", "label")
LIKELY = {"question": ASKED, "prompt": ASKED, "answer": ANSWERED, "completion": ANSWERED}
"""Words in the field names that data sets use for a needed field, in order of preference. `GOLDS` are right answers."""


def columns_line(choices: Sequence[Sequence[str]], row: Row) -> str:
    """Return the setting `columns` that gives a row one of the choices of needed fields, with the fewest fields to guess."""
    best = min((_renaming(needed, row) for needed in choices), key=_doubts)
    pairs = [f"{name}: {given or f'NAME_OF_{name.upper()}'}" for name, given in best.items()]
    return f"`columns: {{{', '.join(pairs)}}}`"


def _renaming(needed: Sequence[str], row: Row) -> dict[str, str | None]:
    """Return the field that probably holds each missing one, or None. The only field that is left holds the last one."""
    left = [name for name in row if name not in needed]
    inner = [f"{name}.{one}" for name in left if isinstance(row[name], dict) for one in row[name]]
    words = {name: (*LIKELY.get(name, ()), name) for name in needed if row.get(name) is None}
    found = {name: find_field(some, left) or find_field(some, inner) for name, some in words.items()}
    unnamed = [name for name, given in found.items() if given is None]
    others = [name for name in left if name not in found.values()]
    if len(unnamed) == len(others) == 1:
        found[unnamed[0]] = others[0]
    return found


def _doubts(renaming: Mapping[str, str | None]) -> tuple[int, int]:
    """Return the numbers of missing fields without a candidate, and of those with unusual names."""
    return sum(given is None for given in renaming.values()), sum(name not in LIKELY for name in renaming)


def _needed(known: RowFormat) -> tuple[str, ...]:
    """Return the fields that a format needs, empty if its rule does not name them."""
    rule = known.matches
    if not isinstance(rule, HasFields):
        return ()
    return rule.names if rule.how is all else rule.names[:1]


def find_field(words: Sequence[str], names: Collection[str]) -> str | None:
    """Return the first field whose name has one of the words, which are in order of preference."""
    return next((name for word in words for name in names if word in name.rpartition(".")[2].lower()), None)

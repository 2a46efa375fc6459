"""Rows that repeat an earlier one, and questions whose rows have different answers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from temper.envs.core.row_fields import quote_value
from temper.envs.core.row_format import GOLDS, find_field
from temper.envs.core.task import Task
from temper.envs.data.split import digest
from temper.envs.own_reward import ROW
from temper.rewards.plain_numbers import plain_number

SPEC_GOLDS = ("answer", "accepted", "items", "quantity", "value", "values", "wanted")
"""Keys of a spec with the right answer."""
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Answered:
    """The forms of the first answer to a question, this answer and the number of its row, from 1."""

    forms: frozenset[str]
    answer: Any
    row: int


class SeenRows:
    """Counts repeated rows, and names questions whose answers differ."""

    def __init__(self) -> None:
        self.repeated = 0
        self.unread: Counter[str] = Counter()
        """Rows by the fields that nothing reads."""
        self._rows: set[str] = set()
        self._answers: dict[str, _Answered] = {}
        self._different: dict[str, str] = {}

    def add(self, row: Any) -> bool:
        """Return whether an equal row was added before."""
        key = digest(row)
        known = key in self._rows
        self._rows.add(key)
        self.repeated += known
        return known

    def add_task(self, task: Task, number: int, *, unread: Iterable[str] = ()) -> None:
        """Add the task of the row with this 0-based number. Nothing reads its `unread` fields."""
        self.unread.update(unread)
        self.add([task.request, task.tools, task.spec])
        answer = _answer_of(task.spec)
        forms = frozenset(_forms(answer))
        if not forms:
            return
        question = digest([task.request, task.tools])
        first = self._answers.setdefault(question, _Answered(forms, answer, number + 1))
        if first.forms.isdisjoint(forms) and question not in self._different:
            self._different[question] = (
                f"rows {first.row} and {number + 1} ({quote_value(first.answer)} and {quote_value(answer)})"
            )

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return a text for each kind of remarkable rows, with their number."""
        found = [f"{self.repeated} repeat an earlier row"] if self.repeated else []
        if self._different:
            named = list(self._different.values())[:MOST_NAMED]
            found.append(f"{len(self._different)} questions have different answers, such as {', '.join(named)}")
        return tuple(found)


def _answer_of(spec: Mapping[str, Any]) -> Any:
    """Return the right answer of a spec, or None if it has none that can be compared, such as tests of programs."""
    held = [spec[name] for name in SPEC_GOLDS if name in spec]
    if held:
        return held[0]
    if set(spec) != {ROW}:
        return None
    fields = dict(_named_values(spec[ROW]))  # of a row that a user's reward judges
    name = find_field(GOLDS, fields)
    return None if name is None else fields[name]


def _named_values(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        yield from value.items() if isinstance(value, Mapping) else [(name, value)]


def _forms(answer: Any) -> Iterator[str]:
    """Yield the forms of an answer, or of each accepted one. Answers that differ share none."""
    for one in answer if isinstance(answer, list) else [answer]:
        if isinstance(one, str | int | float):
            number = plain_number(str(one))
            yield "".join(str(one).casefold().split()) if number is None else str(number)
        elif one is not None:
            yield digest(answer)

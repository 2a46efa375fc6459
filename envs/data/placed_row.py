"""A row of data, and the columns and rows of it that are wanted."""

from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from temper.envs.core.row_format import Row
from temper.envs.data.config import DataConfig, number_of

ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRow:
    """A row with the place where it stands, or what is wrong with it."""

    place: str
    """File and line, or data set and row, counted from 1."""
    row: Row | None = None
    fault: str = ""


def wanted(placed: PlacedRow, data: DataConfig) -> PlacedRow | None:
    """Return the row under the names that are wanted; None for one that the filter leaves out, as one without its column."""
    if placed.row is None or not (data.filter or data.columns):
        return placed
    try:
        if not all(_passes(_found(placed.row, name), rule) for name, rule in data.filter.items()):
            return None
        return replace(placed, row=_renamed(placed.row, data.columns))
    except ValueError as error:
        return replace(placed, row=None, fault=str(error))


def _renamed(row: Row, columns: dict[str, str]) -> Row:
    given = {needed: _value(row, name, f"columns.{needed}") for needed, name in columns.items()}
    moved = set(columns.values())
    return {name: value for name, value in row.items() if name not in moved} | given


def has_column(row: Row, name: str) -> bool:
    """Return whether a row has a column; what is null in a table is absent from its row."""
    return _found(row, name) is not ABSENT


def _value(row: Row, name: str, setting: str) -> Any:
    value = _found(row, name)
    if value is ABSENT:
        raise ValueError(f"{setting} names the column {name!r}; the row has {sorted(row)}")
    return value


def _found(row: Row, name: str) -> Any:
    """Return the value of a column; `a.b` is the entry `b` of the column `a` where no column has the whole name."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        value = value.get(part, ABSENT) if isinstance(value, dict) else ABSENT
    return value


def _passes(value: Any, rule: Any) -> bool:
    if value is ABSENT:
        return False
    if isinstance(rule, dict):
        return _within(value, rule.get("min"), rule.get("max"))
    return any(_equal(value, one) for one in (rule if isinstance(rule, list) else [rule]))


def _within(value: Any, low: Any, high: Any) -> bool:
    """Return whether a value lies between two numbers, or between two texts, such as dates; the bounds belong to it.

    Texts that are numbers are compared as such with what is a number.
    """
    number, lowest, highest = number_of(value), number_of(low), number_of(high)
    if number is not None and (lowest is None) == (low is None) and (highest is None) == (high is None):
        return (lowest is None or lowest <= number) and (highest is None or number <= highest)
    if not (isinstance(low, str | None) and isinstance(high, str | None)):
        return False
    text = str(value)
    return (low is None or text >= low) and (high is None or text[: len(high)] <= high)


def _equal(value: Any, wanted: Any) -> bool:
    """Return whether two values are one; a number may be a text, as in every column of a CSV file."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return str(value).lower() == str(wanted).lower()
    if value == wanted or isinstance(value, dict | list):
        return bool(value == wanted)
    return str(value) == str(wanted) or (isinstance(wanted, int | float) and _decimal(value) == _decimal(wanted))


def _decimal(value: Any) -> Decimal | None:
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None

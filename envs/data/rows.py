"""Rows of data from any location. Every fault names its place."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar

from temper.envs.core.errors import TemplateRefusal
from temper.envs.core.row_format import LeftOut, MissingField, Row
from temper.envs.data.config import DataConfig, OnError, explain_no_hub_name, is_hub_name, near_names, to_number
from temper.envs.data.jsonl import PlacedRow, read_jsonl, require_lines

LOG = logging.getLogger(__name__)
T = TypeVar("T")
ABSENT = object()
UNREAD = "unread"
"""The name to which `columns` moves a column that only some rows may have, so that it is not read."""
TABLES = (".parquet", ".csv", ".tsv", ".json")
"""Endings of tables. A `.json` file is one only if it holds a list. All other files are JSONL."""
COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}
"""First bytes of compressed files."""


@dataclass(slots=True)
class Tally:
    """Counts of the rows read so far."""

    read: int = 0
    skipped: int = 0
    first_fault: str = ""
    """The place and fault of the first skipped row."""

    def skip(self, fault: str) -> None:
        self.skipped += 1
        self.first_fault = self.first_fault or fault


def is_on_hub(data: DataConfig) -> bool:
    return is_hub_name(data.path, (*TABLES, ".jsonl"))


def open_rows(data: DataConfig) -> Iterator[PlacedRow]:
    """Yield all rows of data, unfiltered."""
    return (placed for file in data_files(data) for placed in read_file_rows(file))


def require_data(data: DataConfig) -> None:
    """Raise `FileNotFoundError` for data that is not on this machine and has no hub name."""
    path = Path(data.path).expanduser()
    if not path.exists() and not is_on_hub(data):
        raise FileNotFoundError(
            f"no data file {path}{explain_no_hub_name(data.path)}{near_names(path)}; set the path of a JSONL, Parquet or CSV "
            f"file or of a folder, or the hub name of a data set"
        )


def data_files(data: DataConfig) -> list[Path]:
    """Return the files with the rows, downloaded if necessary. Raise `FileNotFoundError` if there are none."""
    path = Path(data.path).expanduser()
    if path.is_file():
        if named := [name for name in ("config", "split", "revision") if vars(data)[name] is not None]:
            raise ValueError(f"{path} is a file, which has no {' and no '.join(named)}; remove it")
        return [path]
    require_data(data)
    from temper.envs.data.tables import find_files

    return find_files(data, on_hub=is_on_hub(data))


def read_file_rows(path: Path) -> Iterator[PlacedRow]:
    """Yield all rows of a file, with row numbers from 1 for tables, otherwise with line numbers.

    Raise `ValueError` for a compressed file, and for one that is a single JSON object around its rows.
    """
    with path.open("rb") as file:
        start = file.read(64)
    for first, compression in COMPRESSED.items():
        if start.startswith(first):
            raise ValueError(f"{path} is compressed ({compression}); unpack it and set the path of the unpacked file")
    if not _is_table(path, start):
        require_lines(path)
        return read_jsonl(path)
    from temper.envs.data.tables import read_table

    rows = enumerate(read_table(path), start=1)
    return (PlacedRow(place=f"{path}: row {number}", row=row, padded=True) for number, row in rows)


def read_usable_rows(
    data: DataConfig, *, parse: Callable[[Row, int], T], on_error: OnError, tally: Tally | None = None
) -> Iterator[T]:
    """Yield the result of `parse` for every row that passes the filter. `tally` counts.

    `parse` takes the row and its 0-based number and raises `ValueError` for a bad row. With `on_error` "raise", which the
    data may override, the first bad row raises `ValueError` with its place. With "skip" bad rows are counted. `LeftOut`
    rows are always counted.
    """
    tally = Tally() if tally is None else tally
    on_error = data.on_error or on_error
    unmet = list(data.filter)
    for number, given in enumerate(open_rows(data)):
        if unmet and given.row is not None:
            unmet = [name for name in unmet if not has_column(given.row, name)]
        placed = select_row(given, data)
        if placed is None:
            continue
        tally.read += 1
        try:
            if placed.row is None:
                raise ValueError(placed.fault)
            item = _parsed(placed.row, number, parse, padded=placed.padded)
        except ValueError as error:
            fault = f"{placed.place}: {error}"
            if on_error == "raise" and not isinstance(error, LeftOut):
                own = "" if isinstance(error, TemplateRefusal) else "; fix the row"
                others = " or set on_error=skip" if tally.read > tally.skipped + 1 else ""
                raise ValueError(f"{fault}{own}{others}") from error
            LOG.debug("%s", fault)
            tally.skip(fault)
            if data.streaming and tally.skipped == 1:  # the total is unknown until all rows are read
                LOG.warning("%s; skipping such rows", fault)
            continue
        yield item
    if tally.skipped:
        LOG.warning("%s: skipped %d of %d rows", data.name, tally.skipped, tally.read)
    if tally.read == tally.skipped:
        raise ValueError(f"{data.name} {_nothing(tally, unmet, data)}")


def _parsed(row: Row, number: int, parse: Callable[[Row, int], T], *, padded: bool) -> T:
    """Return the result for a row, without the nulls of a padded one. The error of a row that lacks a field names nulls."""
    if not padded:
        return parse(row, number)
    filled = {name: value for name, value in row.items() if value is not None}
    try:
        return parse(filled, number)
    except MissingField:
        if len(filled) < len(row):
            return parse(row, number)
        raise


def _nothing(tally: Tally, unmet: Sequence[str], data: DataConfig) -> str:
    """Return why data has no usable row."""
    if not tally.read and not data.filter:
        return "is empty; add rows"
    left = f"{tally.skipped} skipped" + (", others filtered out" if data.filter else "")
    if unmet:
        left += f"; no row has the filter column {', '.join(map(repr, unmet))}"
    return f"has no usable rows ({left}); " + (tally.first_fault or "use rows of a known format")


def read_rows(data: DataConfig, *, parse: Callable[[Row, int], T], on_error: OnError) -> tuple[list[T], int]:
    """Return the results of `read_usable_rows` and the number of skipped rows."""
    tally = Tally()
    items = list(read_usable_rows(data, parse=parse, on_error=on_error, tally=tally))
    return items, tally.skipped


def _is_table(path: Path, start: bytes) -> bool:
    ending = path.suffix.lower()
    return ending in TABLES and (ending != ".json" or start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["))


def select_row(placed: PlacedRow, data: DataConfig) -> PlacedRow | None:
    """Return the row with renamed columns, or None if the filter drops it or it lacks a filter column."""
    if placed.row is None or not (data.filter or data.columns):
        return placed
    try:
        if not all(_passes(_found(placed.row, name), rule) for name, rule in data.filter.items()):
            return None
        return replace(placed, row=_renamed(placed.row, data.columns))
    except ValueError as error:
        return replace(placed, row=None, fault=str(error))


def _renamed(row: Row, columns: dict[str, str]) -> Row:
    kept = {needed: name for needed, name in columns.items() if needed != UNREAD or has_column(row, name)}
    given = {needed: _value(row, name, f"columns.{needed}") for needed, name in kept.items()}
    moved = set(columns.values())
    return {name: value for name, value in row.items() if name not in moved} | given


def has_column(row: Row, name: str) -> bool:
    return _found(row, name) is not ABSENT


def _value(row: Row, name: str, setting: str) -> Any:
    value = _found(row, name)
    if value is ABSENT:
        raise ValueError(f"{setting} names the column {name!r}, which is null or absent; the row has {sorted(row)}")
    return value


def _found(row: Row, name: str) -> Any:
    """Return the value of a column. `a.b` is the entry `b` of column `a`, unless a column has the whole name."""
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
    """Return whether a value is between two numbers, or two texts such as dates, bounds included.

    Numeric texts are compared with numbers as numbers.
    """
    number, lowest, highest = to_number(value), to_number(low), to_number(high)
    if number is not None and (lowest is None) == (low is None) and (highest is None) == (high is None):
        return (lowest is None or lowest <= number) and (highest is None or number <= highest)
    if not (isinstance(low, str | None) and isinstance(high, str | None)):
        return False
    text = str(value)
    return (low is None or text >= low) and (high is None or text[: len(high)] <= high)


def _equal(value: Any, wanted: Any) -> bool:
    """Return whether two values are equal. A number may be a text, as in every column of a CSV file."""
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

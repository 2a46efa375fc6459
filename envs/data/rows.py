"""Rows of data, wherever they lie: every fault named with its place."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from temper.envs.core.row_format import LeftOut, Row
from temper.envs.data.config import DataConfig, OnError
from temper.envs.data.hub_name import names_hub, why_no_name
from temper.envs.data.jsonl import jsonl_rows
from temper.envs.data.placed_row import PlacedRow, has_column, wanted

LOG = logging.getLogger(__name__)
T = TypeVar("T")
TABLES = (".parquet", ".csv", ".tsv", ".json")
"""Endings of the files that are read as tables, `.json` only where it holds a list; all others are JSONL."""


@dataclass(slots=True)
class Tally:
    """What became of the rows that were read so far."""

    read: int = 0
    skipped: int = 0


def is_on_hub(data: DataConfig) -> bool:
    """Return whether data is a name on the hub."""
    return names_hub(data.path, (*TABLES, ".jsonl"))


def open_rows(data: DataConfig) -> Iterator[PlacedRow]:
    """Yield all rows of data, unfiltered.

    Raise `FileNotFoundError` where there is no such data, `ValueError` where it can't be read.
    """
    path = Path(data.path).expanduser()
    if path.is_file():
        if named := [name for name in ("config", "split", "revision") if vars(data)[name] is not None]:
            raise ValueError(f"{path} is a file, which has no {' and no '.join(named)}; leave it out")
        return file_rows(path)
    return (placed for file in data_files(data) for placed in file_rows(file))


def data_files(data: DataConfig) -> list[Path]:
    """Return the files that hold the rows, downloaded where that is needed. Raise `FileNotFoundError` where there are none."""
    path = Path(data.path).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir() and not is_on_hub(data):
        raise FileNotFoundError(
            f"no data file {path}{why_no_name(data.path)}; give the path of a JSONL file, a Parquet or CSV file or a folder, "
            f"or the name of a data set on the hub"
        )
    from temper.envs.data.tables import files_of

    return files_of(data, on_hub=is_on_hub(data))


def file_rows(path: Path) -> Iterator[PlacedRow]:
    """Yield all rows of a file: of a table with their numbers from 1, else with their lines."""
    if not _is_table(path):
        return jsonl_rows(path)
    from temper.envs.data.tables import table_rows

    return _numbered(table_rows(path), str(path))


def usable_rows(
    data: DataConfig, *, parse: Callable[[Row, int], T], on_error: OnError, tally: Tally | None = None
) -> Iterator[T]:
    """Yield what `parse` makes of every wanted row, one after the other; `tally` counts.

    `parse` takes the row and its 0-based number and raises ValueError for a bad row. With `on_error` "raise", unless the data
    sets another, the first bad row is a ValueError naming its place. With "skip" bad rows are counted, as `LeftOut` ones are.
    """
    tally = Tally() if tally is None else tally
    on_error = data.on_error or on_error
    unmet = list(data.filter)
    for number, given in enumerate(open_rows(data)):
        if unmet and given.row is not None:
            unmet = [name for name in unmet if not has_column(given.row, name)]
        placed = wanted(given, data)
        if placed is None:
            continue
        tally.read += 1
        try:
            if placed.row is None:
                raise ValueError(placed.fault)
            item = parse(placed.row, number)
        except ValueError as error:
            if on_error == "raise" and not isinstance(error, LeftOut):
                raise ValueError(f"{placed.place}: {error}; mend the row or set on_error=skip") from error
            LOG.debug("%s: %s", placed.place, error)
            tally.skipped += 1
            if data.streaming and tally.skipped == 1:  # of how many is known once all were read, if they ever are
                LOG.warning("%s: %s; such rows are left out", placed.place, error)
            continue
        yield item
    if tally.skipped:
        LOG.warning("%s: skipped %d of %d rows as unusable", data.name, tally.skipped, tally.read)
    if tally.read == tally.skipped:
        left = f"{tally.skipped} skipped" + (", others filtered out" if data.filter else "")
        if unmet:
            left += f"; filter names the column {', '.join(map(repr, unmet))}, which no row has"
        raise ValueError(f"{data.name} has no usable rows ({left}); give data with rows of a known format")


def read_rows(data: DataConfig, *, parse: Callable[[Row, int], T], on_error: OnError) -> tuple[list[T], int]:
    """Return what `parse` makes of every wanted row, and the number of rows skipped, as `usable_rows` says."""
    tally = Tally()
    items = list(usable_rows(data, parse=parse, on_error=on_error, tally=tally))
    return items, tally.skipped


def _numbered(rows: Iterator[Row], name: str) -> Iterator[PlacedRow]:
    for number, row in enumerate(rows, start=1):
        yield PlacedRow(place=f"{name}: row {number}", row=row)


def _is_table(path: Path) -> bool:
    ending = path.suffix.lower()
    if ending != ".json":
        return ending in TABLES
    with path.open("rb") as file:
        return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")

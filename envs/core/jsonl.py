"""Rows of a JSONL file, every fault named with its file and line."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

LOG = logging.getLogger(__name__)
OnError = Literal["raise", "skip"]
"""What a row that can't be used does: it ends the run, or is counted and left out."""
MAX_LINE_BYTES = 16 * 2**20
BOM = b"\xef\xbb\xbf"
T = TypeVar("T")


def field(row: dict[str, Any], name: str, kind: type[T]) -> T:
    """Return the field `name` of a row. Raise `ValueError` where it is missing or of another type."""
    if name not in row:
        raise ValueError(f"field {name!r} is missing; the row has {sorted(row)}")
    value = row[name]
    if not isinstance(value, kind):
        raise ValueError(f"field {name!r} must be {kind.__name__}, not {type(value).__name__}")
    return value


def read_rows(path: Path, *, parse: Callable[[dict[str, Any], int], T], on_error: OnError) -> tuple[list[T], int]:
    """Parse every row of a JSONL file; return the items and the number of rows skipped.

    `parse` takes the row and its 0-based row number and raises ValueError for a bad row. Blank lines are no rows.
    With `on_error` "raise" the first bad row is a ValueError naming file and line; with "skip" bad rows are counted.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no data file {path}; give the path of a JSONL file, or null for generated tasks")
    items: list[T] = []
    skipped, number = 0, 0
    for line_number, line in _lines(path):
        try:
            items.append(parse(_row(line), number))
        except ValueError as error:
            if on_error == "raise":
                raise ValueError(f"{path}:{line_number}: {error}; mend the row or set on_error=skip") from error
            LOG.debug("%s:%d: %s", path, line_number, error)
            skipped += 1
        number += 1
    if skipped:
        LOG.warning("%s: skipped %d of %d rows as unusable", path, skipped, number)
    if not items:
        raise ValueError(f"{path} has no usable rows ({skipped} skipped); give a file with one JSON object a line")
    return items, skipped


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the non-blank lines with their 1-based numbers; of a line over the size limit only its start is kept."""
    with path.open("rb") as file:
        line_number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            line_number += 1
            if len(line) > MAX_LINE_BYTES:
                rest = line
                while rest and not rest.endswith(b"\n"):
                    rest = file.readline(MAX_LINE_BYTES)
            if line_number == 1:
                line = line.removeprefix(BOM)
            if line.strip():
                yield line_number, line


def _row(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start} of the line)") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a JSON object: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object but {type(row).__name__}")
    return row

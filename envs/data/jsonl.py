"""Strict reader of JSONL files: every line is a JSON object, with its number or its fault."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from temper.envs.core.messages import is_messages
from temper.envs.core.row_format import ASKED, Row, find_field

MAX_LINE_BYTES = 256 * 2**20
"""Largest size of a line. Packed tests of programs may have tens of MiB in one row."""
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRow:
    """A row with its place, or the fault of a bad row."""

    place: str
    """File and line, or data set and row, counted from 1."""
    row: Row | None = None
    fault: str = ""
    padded: bool = False
    """Whether its null fields are absent ones, as in a table, which has every column in every row."""


def read_jsonl(path: Path) -> Iterator[PlacedRow]:
    """Yield the rows of a file with their 1-based lines. Blank lines are skipped."""
    for number, line in _lines(path):
        place = f"{path}:{number}"
        try:
            yield PlacedRow(place=place, row=_row(line))
        except ValueError as error:
            yield PlacedRow(place=place, fault=str(error))


def read_sound_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file. Raise `ValueError` with the place of a bad row."""
    for placed in read_jsonl(path):
        if placed.row is None:
            raise ValueError(f"{placed.place}: {placed.fault}")
        yield placed.row


WRAPPERS = ("data", "rows", "train", "test", "validation", "instances", "records")
"""Usual names of the list of rows in a file that is one object."""


def require_lines(path: Path) -> None:
    """Raise `ValueError` for a file that is one JSON object around its rows, with the name of their list."""
    lines = _lines(path)
    first, other = next(lines, None), next(lines, None)
    is_alone = first is not None and other is None
    if first is None or not first[1].lstrip().startswith(b"{") or path.stat().st_size > MAX_LINE_BYTES:
        return
    try:
        _row(first[1])
        if not is_alone:
            return
    except ValueError:
        pass
    try:
        wrapper = _row(path.read_bytes().removeprefix(BOM))
    except ValueError:
        return
    lists = [
        name for name, value in wrapper.items() if isinstance(value, list) and value and isinstance(value[0], dict)
    ]
    named = [name for name in lists if name in WRAPPERS] if is_alone else lists
    is_row = any(map(is_messages, wrapper.values())) or find_field(ASKED, wrapper.keys() - lists) is not None
    if named and not is_row:
        raise ValueError(f"{path} is one object with the rows in {named[0]!r}; save this list alone, as a .json file")
    if not is_alone:
        raise ValueError(f"{path} is one object over several lines; write an object a line")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
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


def _row(line: bytes) -> Row:
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

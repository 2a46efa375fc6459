"""The files of a run that have a row a line: a row is added whole or not at all, and one that was torn is not read."""

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from temper.orchestrator.run.folder import unwritten

T = TypeVar("T")


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, whole or not at all. Raise `OSError` with the file and a remedy where that fails."""
    before = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab") as file:
            file.write(line.encode() + b"\n")
    except OSError as error:
        if path.exists():
            os.truncate(path, before)  # a part of the line may be there
        raise unwritten(path, error) from error


class RowFile:
    """A file that stays open for many rows: on shared storage each close waits for the disk."""

    def __init__(self, path: Path) -> None:
        """Nobody else writes the file until it is closed. The first row opens it."""
        self._path = path
        self._file, self._size = -1, 0
        self._end: Callable[[], object] = lambda: None

    def append(self, line: str) -> None:
        """Add a line, whole or not at all. Raise `OSError` with the file and a remedy if that fails."""
        left = memoryview(line.encode() + b"\n")
        size = len(left)
        try:
            if self._file < 0:
                self._open()
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            if self._file >= 0:
                os.ftruncate(self._file, self._size)  # a part of the line may be there
            raise unwritten(self._path, error) from error
        self._size += size

    def sync(self) -> None:
        """Force the added rows to disk, from any thread."""
        if self._file >= 0:
            os.fsync(self._file)
        else:
            sync(self._path)

    def close(self) -> None:
        """Close the file. The next row opens it again."""
        self._file = -1
        self._end()

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._end = weakref.finalize(self, os.close, self._file)
        self._size = os.fstat(self._file).st_size


def sync(path: Path) -> None:
    if path.exists():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def whole_lines(text: str) -> list[str]:
    """Return the lines that end in a newline; the rest is being written, or was when its writer was killed."""
    return text.split("\n")[:-1]


def parsed_lines(text: str, path: Path, parse: Callable[[str], T]) -> list[tuple[str, T]]:
    """Return the whole lines of a file with the row of each. Raise `ValueError` with file and line number for a bad one."""
    found = []
    for number, line in enumerate(whole_lines(text), 1):
        try:
            found.append((line, parse(line)))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is {error}") from error
    return found

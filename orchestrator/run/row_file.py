"""The files of a run that have a row a line: a row is added whole or not at all, and one that was torn is not read."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from orchestrator.run.folder import unwritten

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


def sync(path: Path) -> None:
    """Force to disk what was added, where there is such a file."""
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

"""What of a metrics file a tracker does not have yet, and whether it has more, however often file and process end."""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import BinaryIO

from temper.orchestrator.run.metrics_log import MetricsRow, parse_row

OFFERED = "~"
"""Stands before the hash of a line that was about to be sent: it may have arrived."""
HASH_BYTES = 8


class UnsentRows:
    """The lines of a metrics file that are not in a record of those sent.

    The record has a short hash of each line, once before it is sent and once after, and only grows. So a line that was
    forgotten and measured again, which has another time, counts as unsent; what a killed process had sent but not
    recorded is sent once more; and lines that may have arrived but stand in the file no more are known (`is_cut`).
    """

    def __init__(self, metrics: Path, record: Path, stages: Collection[str] = ()) -> None:
        """`metrics` is the file and `record` that of what was sent; with `stages` the lines of others count as not there."""
        self._metrics = metrics
        self._heads = tuple(f'{{"stage": {json.dumps(stage)},'.encode() for stage in stages)
        self._record = record
        said = record.read_text(encoding="ascii").split() if record.exists() else []
        whole = [one for one in said if len(one.removeprefix(OFFERED)) == 2 * HASH_BYTES]  # the last may be torn
        self._sent = {one for one in whole if not one.startswith(OFFERED)}
        self._offered = {one.removeprefix(OFFERED) for one in whole}
        self._file: BinaryIO | None = None
        """Kept open: a file that takes its place can not be mistaken for it."""
        self._offset = 0
        """Up to here `_file` holds nothing unsent."""
        self._checked = False
        """Whether `_file` is known to have every line that was offered."""

    def is_cut(self) -> bool:
        """Say whether a line that was offered stands in the file no more."""
        self._follow()
        if not self._checked:
            present = set()
            if self._file is not None:
                self._file.seek(0)
                present = {_hash(_text(line)) for line in self._file if self._is_whole(line)}
            self._checked = self._offered <= present
        return not self._checked

    def next(self, most: int) -> list[str]:
        """Return the next whole unsent lines, up to `most`, without their newlines; the same again until they are `done`."""
        self._follow()
        found: list[str] = []
        if self._file is None:
            return found
        self._file.seek(self._offset)
        for line in self._file:
            if len(found) == most or not line.endswith(b"\n"):
                break
            if self._is_whole(line) and _hash(text := _text(line)) not in self._sent:
                found.append(text)
            elif not found:
                self._offset += len(line)
        return found

    def rows(self, lines: Iterable[str], *, say: Callable[[str], None]) -> list[MetricsRow]:
        """Return the rows of lines; a line that is none is said and left out, so that it holds up none of those behind it."""
        found = []
        for line in lines:
            try:
                found.append(parse_row(line))
            except ValueError as error:
                say(f"tracking: {self._metrics} has a line that is left out: {error}")
        return found

    def offer(self, lines: list[str]) -> None:
        """Record that these lines are about to be sent."""
        new = [one for one in map(_hash, lines) if one not in self._offered]
        self._write([OFFERED + one for one in new])
        self._offered.update(new)

    def done(self, lines: list[str]) -> None:
        """Record that these lines were sent."""
        hashes = [_hash(line) for line in lines]
        self._write(hashes)
        self._sent.update(hashes)

    def count(self) -> int:
        """Count the whole lines that are unsent."""
        if not self._metrics.exists():
            return 0
        with self._metrics.open("rb") as file:
            return sum(self._is_whole(line) and _hash(_text(line)) not in self._sent for line in file)

    def close(self) -> None:
        """Let go of the file; it is opened again by whatever asks for its rows."""
        self._open(None)

    def _is_whole(self, line: bytes) -> bool:
        """Say whether a line is whole and one of those that are wanted."""
        return line.endswith(b"\n") and (not self._heads or line.startswith(self._heads))

    def _follow(self) -> None:
        """Open the file that bears the name now: it is replaced where rows are taken out of it, else it only grows."""
        try:
            now = os.stat(self._metrics)
        except FileNotFoundError:
            self._open(None)
            return
        if self._file is not None:
            known = os.fstat(self._file.fileno())
            if os.path.samestat(known, now) and now.st_size >= self._offset:
                return
        self._open(self._metrics.open("rb"))

    def _open(self, file: BinaryIO | None) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._offset, self._checked = file, 0, False

    def _write(self, hashes: list[str]) -> None:
        self._record.parent.mkdir(parents=True, exist_ok=True)
        with self._record.open("a", encoding="ascii") as file:
            file.writelines(f"\n{one}" for one in hashes)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").removesuffix("\n")


def _hash(line: str) -> str:
    return hashlib.blake2b(line.encode(), digest_size=HASH_BYTES).hexdigest()

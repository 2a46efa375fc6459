"""The rows of a metrics file that a tracker lacks: the file is the queue, however often file and process end."""

import hashlib
import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO

from temper.orchestrator.run.folder import write_json
from temper.orchestrator.run.metrics_log import MetricsRow, parse_row

ROWS_AT_ONCE = 100
NOTHING: dict[str, Any] = {"sent": 0, "offered": 0, "digest": ""}


class UnsentRows:
    """The lines of a metrics file behind those that its record counts.

    The record has how many lines were `sent`, how many were `offered` (before sending: they may have arrived) and the digest
    of the latter, by which a file that lost one of them is known.
    """

    def __init__(self, metrics: Path, record: Path, stages: Collection[str] = ()) -> None:
        """With `stages` the lines of other stages do not count."""
        self._metrics = metrics
        self._heads = tuple(f'{{"stage": {json.dumps(stage)},'.encode() for stage in stages)
        self._record = record
        self._known = _read(record)
        self._file: BinaryIO | None = None
        """Kept open: a file that takes its place can not be mistaken for it."""
        self._offset = self._read_to = 0
        self._digest = hashlib.blake2b(digest_size=16)
        """Of the lines before `_offset`, which were sent."""
        self._cut = False

    @property
    def sent(self) -> int:
        """The number of rows that were sent."""
        return int(self._known["sent"])

    @property
    def known(self) -> dict[str, Any]:
        """The content of the record."""
        return dict(self._known)

    def is_cut(self) -> bool:
        """Return whether a line that was offered is in the file no more."""
        self._follow()
        return bool(self._known["offered"]) if self._file is None else self._cut

    def send(self, deliver: Callable[[list[MetricsRow]], None], *, say: Callable[[str], None]) -> None:
        """Deliver all whole lines that are unsent. A line that is no row is named and left out."""
        self._follow()
        while not self._cut and (lines := self._next()):
            digest = self._digest.copy()
            for line in lines:
                digest.update(line)
            count = self._known["sent"] + len(lines)
            self._note(sent=self._known["sent"], offered=count, digest=digest.hexdigest())
            deliver(self._rows(lines, say))
            self._note(sent=count, offered=count, digest=digest.hexdigest())
            self._digest, self._offset = digest, self._read_to

    def count(self) -> int:
        """Count the whole lines that are unsent."""
        if not self._metrics.exists():
            return 0
        with self._metrics.open("rb") as file:
            return max(0, sum(map(self._is_wanted, file)) - int(self._known["sent"]))

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _next(self) -> list[bytes]:
        found: list[bytes] = []
        if self._file is not None:
            self._file.seek(self._offset)
            self._read_to = self._offset
            for line in self._file:
                if len(found) == ROWS_AT_ONCE or not line.endswith(b"\n"):
                    break
                self._read_to += len(line)
                if self._is_wanted(line):
                    found.append(line)
        return found

    def _rows(self, lines: list[bytes], say: Callable[[str], None]) -> list[MetricsRow]:
        found = []
        for line in lines:
            try:
                found.append(parse_row(line.decode(errors="replace").removesuffix("\n")))
            except ValueError as error:
                say(f"tracking: {self._metrics} has a line that is left out: {error}")
        return found

    def _is_wanted(self, line: bytes) -> bool:
        return line.endswith(b"\n") and (not self._heads or line.startswith(self._heads))

    def _note(self, **known: Any) -> None:
        self._known = known
        self._record.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._record, known)

    def _follow(self) -> None:
        """Open the file that has the name now: a file that lost rows is another one, else it only grows."""
        try:
            now = os.stat(self._metrics)
        except FileNotFoundError:
            self.close()
            return
        if self._file is not None:
            if os.path.samestat(os.fstat(self._file.fileno()), now) and now.st_size >= self._offset:
                return
            self._file.close()
        self._file = self._metrics.open("rb")
        self._check(self._file)

    def _check(self, file: BinaryIO) -> None:
        """Compare the file with the record, and find the first unsent line."""
        self._offset, self._digest = 0, hashlib.blake2b(digest_size=16)
        digest, count, place = self._digest.copy(), 0, 0
        for line in file:
            if count == self._known["offered"]:
                break
            place += len(line)
            if self._is_wanted(line):
                digest.update(line)
                count += 1
                if count == self._known["sent"]:
                    self._digest, self._offset = digest.copy(), place
        self._cut = bool(self._known["offered"]) and digest.hexdigest() != self._known["digest"]


def _read(record: Path) -> dict[str, Any]:
    """Return the content of a record. A record in another format counts as lines that the file no longer has."""
    text = record.read_text(encoding="utf-8") if record.exists() else ""
    if not text.strip():
        return NOTHING
    try:
        known = json.loads(text)
    except ValueError:
        known = None
    return known if isinstance(known, dict) else NOTHING | {"offered": 1}

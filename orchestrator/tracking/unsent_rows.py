"""The stored state of a run at one backend: the identity of its run there, and the unsent rows of the metrics file."""

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from temper.orchestrator.run.folder import write_json
from temper.orchestrator.run.metrics_log import MetricsRow, parse_row

ROWS_AT_ONCE = 100
NOTHING: dict[str, Any] = {"sent": 0, "offered": 0, "digest": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """The backend's run of this run, stored in `run.json` before use."""

    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The run's tag."""
    run_id: str | None = None
    """The run's id, once known."""
    replaced: tuple[str, ...] = ()
    """Runs that this one replaces and that are not deleted yet."""


def load_identity(folder: Path) -> RunIdentity:
    """Return the stored identity of the run. A new one gets its mark stored first."""
    path = folder / "run.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        save_identity(folder, RunIdentity())
    raw = json.loads(path.read_text(encoding="utf-8"))
    return RunIdentity(mark=raw["mark"], run_id=raw["run_id"], replaced=tuple(raw.get("replaced", ())))


def save_identity(folder: Path, known: RunIdentity) -> None:
    """Store it atomically."""
    write_json(folder / "run.json", asdict(known))


class UnsentRows:
    """The lines of a metrics file after those in its record: the file is the queue.

    The record has the number of lines `sent`, the number `offered` (before sending, so they may have arrived) and a digest
    of the latter, which detects a file that lost lines.
    """

    def __init__(self, metrics: Path, record: Path, stages: Collection[str] = ()) -> None:
        """With `stages` only lines of these stages count."""
        self._metrics = metrics
        self._prefixes = tuple(f'{{"stage": {json.dumps(stage)},'.encode() for stage in stages)
        self._record = record
        self.known = _read(record)
        """The content of the record."""
        self._file: BinaryIO | None = None
        """Kept open, so that a replacement file is detected."""
        self._offset = 0
        self._digest = hashlib.blake2b(digest_size=16)
        """Of the sent lines, before `_offset`."""
        self._lost_rows = False

    def has_lost_rows(self) -> bool:
        """Return whether an offered line is no longer in the file."""
        self._open_current()
        return bool(self.known["offered"]) if self._file is None else self._lost_rows

    def send(self, deliver: Callable[[list[MetricsRow]], None], *, notify: Callable[[str], None]) -> None:
        """Deliver all unsent whole lines. Invalid lines are reported and skipped."""
        self._open_current()
        while not self._lost_rows:
            lines, offset = self._next()
            if not lines:
                return
            digest = self._digest.copy()
            digest.update(b"".join(lines))
            count = self.known["sent"] + len(lines)
            self._write_record({"sent": self.known["sent"], "offered": count, "digest": digest.hexdigest()})
            deliver(self._rows(lines, notify))
            self._write_record(self.known | {"sent": count})
            self._digest, self._offset = digest, offset

    def count(self) -> int:
        """Count the unsent whole lines."""
        if not self._metrics.exists():
            return 0
        with self._metrics.open("rb") as file:
            return max(0, sum(map(self._is_wanted, file)) - int(self.known["sent"]))

    def close(self) -> None:
        """Close the file. The next call opens it again."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _next(self) -> tuple[list[bytes], int]:
        """Return the next unsent lines and the offset after them."""
        found: list[bytes] = []
        offset = self._offset
        if self._file is not None:
            self._file.seek(offset)
            for line in self._file:
                if len(found) == ROWS_AT_ONCE or not line.endswith(b"\n"):
                    break
                offset += len(line)
                if self._is_wanted(line):
                    found.append(line)
        return found, offset

    def _rows(self, lines: list[bytes], notify: Callable[[str], None]) -> list[MetricsRow]:
        found = []
        for line in lines:
            try:
                found.append(parse_row(line.decode(errors="replace").removesuffix("\n")))
            except ValueError as error:
                notify(f"tracking: {self._metrics} has an invalid line, skipped: {error}")
        return found

    def _is_wanted(self, line: bytes) -> bool:
        return line.endswith(b"\n") and (not self._prefixes or line.startswith(self._prefixes))

    def _write_record(self, known: dict[str, Any]) -> None:
        self.known = known
        self._record.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._record, known)

    def _open_current(self) -> None:
        """Open the current file of this name. A file that lost rows is a new one, otherwise it only grows."""
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
        digest, count, offset = self._digest.copy(), 0, 0
        for line in file:
            if count == self.known["offered"]:
                break
            offset += len(line)
            if self._is_wanted(line):
                digest.update(line)
                count += 1
                if count == self.known["sent"]:
                    self._digest, self._offset = digest.copy(), offset
        self._lost_rows = bool(self.known["offered"]) and digest.hexdigest() != self.known["digest"]


def _read(record: Path) -> dict[str, Any]:
    """Return the content of a record. Another format counts as lost lines."""
    text = record.read_text(encoding="utf-8") if record.exists() else ""
    if not text.strip():
        return NOTHING
    try:
        known = json.loads(text)
    except ValueError:
        known = None
    return known if isinstance(known, dict) else NOTHING | {"offered": 1}

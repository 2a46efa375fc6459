"""The state of a run at one place, on disk: which run there is ours, and which rows of the metrics file it lacks."""

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
    """Which run of the place is ours; `run.json`, stored before it is used."""

    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The tag that the run bears."""
    run_id: str | None = None
    """Its id, as soon as that is known."""
    replaced: tuple[str, ...] = ()
    """The runs that this one replaces and that are not deleted yet."""


def load_identity(folder: Path) -> RunIdentity:
    """Return what is remembered of the run; for a new one its mark, stored before it is used for the first time."""
    path = folder / "run.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        save_identity(folder, RunIdentity())
    raw = json.loads(path.read_text(encoding="utf-8"))
    return RunIdentity(mark=raw["mark"], run_id=raw["run_id"], replaced=tuple(raw.get("replaced", ())))


def save_identity(folder: Path, known: RunIdentity) -> None:
    """Store it, whole or not at all."""
    write_json(folder / "run.json", asdict(known))


class UnsentRows:
    """The lines of a metrics file behind those that its record counts: the file is the queue.

    The record has how many lines were `sent`, how many were `offered` (before sending: they may have arrived) and the digest
    of the latter, by which a file that lost one of them is known.
    """

    def __init__(self, metrics: Path, record: Path, stages: Collection[str] = ()) -> None:
        """With `stages` the lines of other stages do not count."""
        self._metrics = metrics
        self._prefixes = tuple(f'{{"stage": {json.dumps(stage)},'.encode() for stage in stages)
        self._record = record
        self.known = _read(record)
        """The content of the record."""
        self._file: BinaryIO | None = None
        """Kept open: a file that takes its place can not be mistaken for it."""
        self._offset = 0
        self._digest = hashlib.blake2b(digest_size=16)
        """Of the lines before `_offset`, which were sent."""
        self._lost_rows = False

    def has_lost_rows(self) -> bool:
        """Return whether a line that was offered is in the file no more."""
        self._open_current()
        return bool(self.known["offered"]) if self._file is None else self._lost_rows

    def send(self, deliver: Callable[[list[MetricsRow]], None], *, notify: Callable[[str], None]) -> None:
        """Deliver all whole lines that are unsent. A line that is no row is named and left out."""
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
        """Count the whole lines that are unsent."""
        if not self._metrics.exists():
            return 0
        with self._metrics.open("rb") as file:
            return max(0, sum(map(self._is_wanted, file)) - int(self.known["sent"]))

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _next(self) -> tuple[list[bytes], int]:
        """Return the next unsent lines and the offset behind them."""
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
                notify(f"tracking: {self._metrics} has a line that is left out: {error}")
        return found

    def _is_wanted(self, line: bytes) -> bool:
        return line.endswith(b"\n") and (not self._prefixes or line.startswith(self._prefixes))

    def _write_record(self, known: dict[str, Any]) -> None:
        self.known = known
        self._record.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._record, known)

    def _open_current(self) -> None:
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
    """Return the content of a record. A record in another format counts as lines that the file no longer has."""
    text = record.read_text(encoding="utf-8") if record.exists() else ""
    if not text.strip():
        return NOTHING
    try:
        known = json.loads(text)
    except ValueError:
        known = None
    return known if isinstance(known, dict) else NOTHING | {"offered": 1}

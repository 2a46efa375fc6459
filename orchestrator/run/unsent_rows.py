"""What of a metrics file a tracker does not have yet, however often the file is cut back and the process dies."""

import hashlib
from pathlib import Path


class UnsentRows:
    """The lines of a metrics file that are not in a record of those sent.

    The record has a short hash of each line sent and only grows. So a line that was forgotten and measured again, which
    has another time, counts as unsent, and what a killed process had sent but not recorded is sent once more.
    """

    def __init__(self, metrics: Path, record: Path) -> None:
        self._metrics = metrics
        self._record = record
        self._sent = set(record.read_text(encoding="ascii").split()) if record.exists() else set()
        self._offset = 0
        """Up to here the file holds nothing unsent, if the line that ends there is still `_last`."""
        self._last = b""

    def next(self, most: int) -> list[str]:
        """Return the next whole unsent lines, up to `most`, without their newlines; the same again until they are `done`."""
        if not self._metrics.exists():
            return []
        found: list[str] = []
        with self._metrics.open("rb") as file:
            file.seek(self._offset - len(self._last))
            if file.read(len(self._last)) != self._last:  # the file was cut back
                self._offset, self._last = file.seek(0), b""
            for line in file:
                if len(found) == most or not line.endswith(b"\n"):
                    break
                text = line.decode(errors="replace")[:-1]
                if _hash(text) not in self._sent:
                    found.append(text)
                elif not found:
                    self._offset, self._last = self._offset + len(line), line
        return found

    def done(self, lines: list[str]) -> None:
        """Record that these lines were sent."""
        hashes = [_hash(line) for line in lines]
        self._record.parent.mkdir(parents=True, exist_ok=True)
        with self._record.open("a", encoding="ascii") as file:
            file.writelines(f"\n{one}" for one in hashes)
        self._sent.update(hashes)

    def count(self) -> int:
        """Count the whole lines that are unsent."""
        if not self._metrics.exists():
            return 0
        lines = self._metrics.read_text(encoding="utf-8").split("\n")[:-1]
        return sum(_hash(line) not in self._sent for line in lines)


def _hash(line: str) -> str:
    return hashlib.blake2b(line.encode(), digest_size=8).hexdigest()

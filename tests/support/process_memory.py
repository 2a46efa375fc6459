"""The memory of a job's processes while it runs, and the processes whose memory grows."""

import contextlib
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil
from support.fault_job import title

SAMPLE_S = 5.0
WARM_UP_S = 120.0
WINDOW_S = 60.0
GROWTH = 0.05
"""The share by which a process may grow between the first and the last window after its warm-up."""
SMALL = 64 * 2**20
"""A smaller process may grow by the same share of this: 5 % of a Ray daemon are a few thousand table entries.

Ray's raylet grew from 33 to 36 MB in 30 minutes of faults, and not in the last eight of them. A longer leak at that rate
shows within an hour.
"""
DRIVER = "driver"
PARTS = ("VmRSS", "RssAnon", "RssFile", "RssShmem")
"""A process's resident memory from the kernel: total, private, mapped files, and shared."""
MB = 2**20


@dataclass(kw_only=True)
class Memory:
    """The resident bytes of one process, in total and by parts, with the second since its first sample."""

    kind: str
    began: float
    samples: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    @property
    def lived_s(self) -> float:
        return self.samples[-1][0] if self.samples else 0.0

    @property
    def warm_s(self) -> float:
        """Seconds at its first sample after the warm-up. On a busy machine that may be late."""
        return next((at for at, _ in self.samples if at >= WARM_UP_S), self.lived_s)

    @property
    def judged(self) -> bool:
        """Whether it has lived for two windows after its warm-up."""
        return self.lived_s >= self.warm_s + 2 * WINDOW_S

    def first(self, part: str = PARTS[0]) -> int:
        """Return the least of the first window after the warm-up, without the temporary memory of a step."""
        return min(sizes[part] for at, sizes in self.samples if 0 <= at - self.warm_s < WINDOW_S)

    def last(self, part: str = PARTS[0]) -> int:
        """Return the least of the last window. Leaked memory is never freed, so that a leak raises the least too."""
        return min(sizes[part] for at, sizes in self.samples if at > self.lived_s - WINDOW_S)

    @property
    def growth(self) -> float:
        """Its growth since the warm-up, as a share."""
        return self.last() / self.first() - 1.0

    @property
    def flat(self) -> bool:
        """Whether its growth is within the limit."""
        return self.last() - self.first() <= GROWTH * max(self.first(), SMALL)

    def grown(self) -> str:
        """Format its growth."""
        parts = ", ".join(f"{part} {(self.last(part) - self.first(part)) / MB:+.0f} MB" for part in PARTS[1:])
        return f"{self.kind} has grown by {100 * self.growth:.1f} % in {self.lived_s:.0f} s ({parts})"


class MemoryWatch:
    """Memory samples by process id. The last title names a process."""

    def __init__(self, driver: int) -> None:
        self._driver = driver
        self.seen: dict[tuple[int, float], Memory] = {}

    def sample(self, processes: Iterable[psutil.Process]) -> None:
        """Add a sample of each living process."""
        now = time.monotonic()
        for one in processes:
            with contextlib.suppress(OSError, psutil.Error):
                sizes = resident(one.pid)
                kind = DRIVER if one.pid == self._driver else kind_of(title(one))
                known = self.seen.setdefault((one.pid, one.create_time()), Memory(kind=kind, began=now))
                known.kind = kind or known.kind
                known.samples.append((now - known.began, sizes))

    def driver_bytes(self) -> int:
        """Return the driver's memory in its last sample."""
        drivers = [one for one in self.seen.values() if one.kind == DRIVER and one.samples]
        return drivers[-1].samples[-1][1][PARTS[0]] if drivers else 0

    def problems(self) -> list[str]:
        """Return which processes have grown, and whether the driver could not be judged."""
        judged = [one for one in self.seen.values() if one.judged]
        found = [one.grown() for one in judged if not one.flat]
        if not any(one.kind == DRIVER for one in judged):
            least = (WARM_UP_S + 2 * WINDOW_S) / 60
            found.append(f"the driver's memory can't be judged: it was not seen for {least:.0f} minutes")
        return found

    def table(self) -> list[str]:
        """Return a line for each kind of process: their number, and the growth of the one that grew most."""
        lines = [
            f"{'process':<28} {'seen':>5} {'judged':>6} {'lived s':>8} {'first MB':>9} {'last MB':>8} {'growth':>8}"
        ]
        for kind in sorted({one.kind for one in self.seen.values()}, key=lambda kind: (kind != DRIVER, kind)):
            those = [one for one in self.seen.values() if one.kind == kind]
            judged = [one for one in those if one.judged]
            line = f"{kind:<28} {len(those):>5} {len(judged):>6}"
            if judged:
                worst = max(judged, key=lambda one: one.growth)
                line += f" {worst.lived_s:>8.0f} {worst.first() / MB:>9.0f} {worst.last() / MB:>8.0f}"
                line += f" {100 * worst.growth:>+7.1f}%"
            lines.append(line)
        return lines

    def to_json(self) -> list[dict[str, object]]:
        """Return every sample of every process."""
        return [
            {"pid": pid, "kind": one.kind, "samples": [[round(at, 1), *sizes.values()] for at, sizes in one.samples]}
            for (pid, _), one in self.seen.items()
        ]


def resident(pid: int) -> dict[str, int]:
    """Return the resident bytes of a process by parts. Raise `OSError` if it is gone or has none."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
    if not found.keys() >= set(PARTS):
        raise ProcessLookupError(pid)
    return {part: int(found[part]) * 1024 for part in PARTS}


def kind_of(command: str) -> str:
    """Return the kind of a process from its command line: title, script or module."""
    if named := re.match(r"(?:ray|VLLM)::\w+", command):
        return named[0]
    if started := re.search(r" -c from ([\w.]+) import", command):
        return started[1]
    words = command.split()
    if words and not Path(words[0]).name.startswith("python"):  # whose arguments may name the scripts of others
        return Path(words[0]).name
    for before, word in pairwise(words):
        if before == "-m" or word.endswith(".py"):
            return Path(word).name
    return Path(words[0]).name if words else ""

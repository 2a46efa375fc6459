"""Evidence on a stuck or failed process: its state, stacks and logs, and the fault's file.

A process is inspected on its own machine. Nothing here waits for the process itself, which may be stopped.
"""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import psutil

from temper.envs.core.process import STACKS_SIGNAL, Heartbeat, Place, WatchedProcess
from temper.orchestrator.cluster.actors import run_at_place
from temper.orchestrator.run.crash_report import last_fault
from temper.orchestrator.run.folder import write_atomically

PY_SPY = Path(sys.executable).with_name("py-spy")
MOST_PROCESSES = 6
STACKS_S = 6.0
HANDLER_S = 1.0
"""Seconds that a process may take to write its stacks."""
TAIL_BYTES = 6000
OUTPUTS = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKey:
    """One process, distinct from a later one with the same pid. `created` is in seconds since 1970."""

    pid: int
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """Evidence as text, and the processes that belong together."""

    processes: tuple[ProcessKey, ...]
    text: str


def inspect(pid: int, spy: Path = PY_SPY) -> ProcessReport:
    """Inspect a process and its children. `spy` reads their stacks from outside."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return ProcessReport(processes=(), text=f"process {pid} has ended")
    shown = tree[:MOST_PROCESSES]
    with ThreadPoolExecutor(len(shown)) as looks:  # each may wait for py-spy
        parts = list(looks.map(lambda process: _look(process, spy), shown))
    if len(tree) > len(shown):
        parts.append(f"{len(tree) - len(shown)} more children are not shown")
    parts += tails(path for process in shown for path in outputs(process.pid))
    return ProcessReport(processes=tuple(_keys(tree)), text="\n\n".join(parts))


def outputs(pid: int) -> list[Path]:
    """Return the files of standard output and standard error of a local process."""
    found = []
    for number in OUTPUTS:
        with contextlib.suppress(OSError):  # the process has ended or is another user's
            target = Path(os.readlink(f"/proc/{pid}/fd/{number}"))
            if target.is_file():
                found.append(target)
    return found


def tails(paths: Iterable[Path]) -> list[str]:
    return [f"== the end of {path}\n{_tail(path)}" for path in dict.fromkeys(paths)]


def end(processes: Sequence[ProcessKey]) -> None:
    for key in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(key.pid)
            if process.create_time() == key.created:
                process.kill()


def _keys(tree: list[psutil.Process]) -> Iterable[ProcessKey]:
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield ProcessKey(pid=process.pid, created=process.create_time())


def _look(process: psutil.Process, spy: Path) -> str:
    try:
        with process.oneshot():
            name, state, times = process.name(), process.status(), process.cpu_times()
            memory = process.memory_info().rss
    except psutil.NoSuchProcess:
        return f"== process {process.pid} has ended"
    except psutil.AccessDenied as error:
        return f"== process {process.pid} cannot be inspected: {error}"
    head = f"== process {process.pid} {name}: {state}, {times.user + times.system:.0f} s of CPU, {memory / 1e6:.0f} MB"
    return f"{head}\n{_stacks(process, spy, stopped=state == psutil.STATUS_STOPPED)}"


def _stacks(process: psutil.Process, spy: Path, *, stopped: bool) -> str:
    """Return the stacks from py-spy. If it fails, let the process write them to its log."""
    command = [str(spy), "dump", "--nonblocking", "--pid", str(process.pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=STACKS_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        failed = str(error)
    else:
        if done.returncode == 0:
            return done.stdout.strip()
        failed = " ".join(done.stderr.split()) or f"status {done.returncode}"
    if stopped or not _catches(process.pid):
        return f"no stacks: {failed}"
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process.send_signal(STACKS_SIGNAL)
        time.sleep(HANDLER_S)
    return f"its stacks are in its log, below (py-spy: {failed})"


def _catches(pid: int) -> bool:
    """Return whether a process handles `STACKS_SIGNAL`, which would end it otherwise."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (STACKS_SIGNAL - 1) & 1)
    return False


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read(TAIL_BYTES).decode("utf-8", errors="replace").strip() or "(empty)"
    except OSError as error:
        return f"({error})"


INSPECT_S = 60.0
FaultKind = Literal["hung", "recovered", "died", "looked at", "failed"]
"""In order: a stuck process that is ended; one that recovered; one that ended by itself; one inspected because the run waited
too long; an error of the supervision itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultDiagnosis:
    """A faulty process and its problem, with evidence."""

    who: str
    kind: FaultKind
    what: str
    evidence: str
    place: Place | None = None
    heartbeat: Heartbeat | None = None
    processes: tuple[ProcessKey, ...] = ()

    @property
    def line(self) -> str:
        place = "" if self.place is None else f" ({self.place})"
        return f"{self.who}{place} {self.kind}: {self.what}"


async def diagnose(
    process: WatchedProcess, what: str, *, kind: FaultKind, heartbeat: Heartbeat | None = None
) -> FaultDiagnosis:
    """Inspect a process on its own node. A failed inspection is a diagnosis too. `heartbeat` is the last one."""
    place = process.place
    if place is None:
        return FaultDiagnosis(who=process.name, kind=kind, what=what, evidence="it has no process yet")
    try:
        found = await asyncio.wait_for(run_at_place(place, inspect, place.pid), INSPECT_S)
    except Exception as error:  # its machine may be gone, or its memory unreadable
        found = ProcessReport(processes=(), text=f"it cannot be inspected: {type(error).__name__}: {error}")
    return FaultDiagnosis(
        who=process.name,
        kind=kind,
        what=what,
        evidence=found.text,
        place=place,
        heartbeat=heartbeat,
        processes=found.processes,
    )


class FaultFolder:
    """The fault files of a run, numbered in order."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.count = len(list(root.glob("*.txt")))
        """Number of faults. Kept in memory, so that showing it waits for no disk."""

    def write(self, diagnosis: FaultDiagnosis, *, stage: str, step: int, groups: Sequence[str] = ()) -> Path:
        """Write a fault after a step of a stage, with the groups that it interrupted. Return its file."""
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root / f"{1 + last_fault(self._root):03}-{re.sub('[^a-z0-9]+', '-', diagnosis.who.lower())}.txt"
        heartbeat = diagnosis.heartbeat
        lines = [
            diagnosis.line,
            f"when: {datetime.now(UTC).isoformat(timespec='seconds')}, in stage {stage or '-'} after step {step}",
        ]
        if heartbeat is not None:
            lines.append(f"last heartbeat: progress {heartbeat.progress}, doing {heartbeat.doing or 'nothing'}")
        if groups:
            lines.append(f"interrupted {len(groups)} groups: {', '.join(groups)}")
        write_atomically(path, "\n".join([*lines, "", diagnosis.evidence, ""]))
        self.count += 1
        return path

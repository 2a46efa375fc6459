"""A look at a process that is stuck, and at its children: their state, the stacks of their threads, the tail of their logs.

Runs on the machine of the process. Nothing here waits for the process itself, which may be stopped.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from temper.envs.core.pulse import STACKS_SIGNAL

PY_SPY = Path(sys.executable).with_name("py-spy")
MOST_PROCESSES = 6
"""Of a process and its children, how many are looked at."""
STACKS_S = 6.0
"""How long the stacks of one process may take."""
HANDLER_S = 1.0
"""How long a process may take to write its stacks itself."""
TAIL_BYTES = 6000
OUTPUTS = (1, 2)
"""Standard output and standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKey:
    """One process and no later one of the same number. `created` is in seconds since 1970."""

    pid: int
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was found, as text for people, and which processes belong together."""

    processes: tuple[ProcessKey, ...]
    text: str


def examine(pid: int, spy: Path = PY_SPY) -> Examination:
    """Look at a process and its children; `spy` is what reads their stacks from outside."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return Examination(processes=(), text=f"process {pid} has ended")
    shown = tree[:MOST_PROCESSES]
    with ThreadPoolExecutor(len(shown)) as looks:  # each may wait for a program that reads the stacks
        parts = list(looks.map(lambda process: _look(process, spy), shown))
    if len(tree) > len(shown):
        parts.append(f"{len(tree) - len(shown)} more children are not shown")
    parts += tails(path for process in shown for path in outputs(process.pid))
    return Examination(processes=tuple(_keys(tree)), text="\n\n".join(parts))


def outputs(pid: int) -> list[Path]:
    """Return the files that a process of this machine writes its standard output and its standard error to."""
    found = []
    for number in OUTPUTS:
        with contextlib.suppress(OSError):  # ended, or another user's
            target = Path(os.readlink(f"/proc/{pid}/fd/{number}"))
            if target.is_file():
                found.append(target)
    return found


def tails(paths: Iterable[Path]) -> list[str]:
    """Return the end of each of these files, each once."""
    return [f"== the end of {path}\n{_tail(path)}" for path in dict.fromkeys(paths)]


def end(processes: Sequence[ProcessKey]) -> None:
    """Kill these processes, as far as they are still there."""
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
        return f"== process {process.pid} can't be looked at: {error}"
    head = f"== process {process.pid} {name}: {state}, {times.user + times.system:.0f} s of CPU, {memory / 1e6:.0f} MB"
    return f"{head}\n{_stacks(process, spy, stopped=state == psutil.STATUS_STOPPED)}"


def _stacks(process: psutil.Process, spy: Path, *, stopped: bool) -> str:
    """Return the stacks as py-spy reads them; where it may not, have the process write them into its own log."""
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
    """Return whether a process has a handler for `STACKS_SIGNAL`, which would end it otherwise."""
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

"""Memory without a name in any folder, which other processes of this host map as a file of its owner under /proc."""

import ctypes
import errno
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

GROUPS = Path("/sys/fs/cgroup")
"""Where the kernel shows the control groups."""
SPARE = 0.1
"""Share of main memory that stays free beside the copy of a checkpoint: near its end a cluster kills processes."""


class HostMemory:
    """So many bytes of main memory. They are gone with the last process that has them mapped, however that one ends."""

    def __init__(self, nbytes: int) -> None:
        """Allocate all of it. Raises `OSError` where the machine has not as much to give."""
        self._descriptor = reserve(nbytes)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        # Kept mapped: the page faults of a new mapping cost as much as a copy into it.
        self.data = map_file(self.path, nbytes=nbytes)

    def close(self) -> None:
        """Let other processes find it no longer. Those that have it mapped keep it."""
        os.close(self._descriptor)


class MappedFiles:
    """Files of other processes, kept mapped for later use as long as they are there: a new mapping costs half a copy."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, torch.Tensor]] = {}

    def map(self, path: str, *, nbytes: int) -> torch.Tensor:
        """Return the bytes of a file. Raises `ValueError` like `file_inode`."""
        inode = file_inode(path, nbytes=nbytes)
        self._known = {name: known for name, known in self._known.items() if _is_there(name, *known)}
        if path not in self._known:
            self._known[path] = inode, map_file(path, nbytes=nbytes)
        return self._known[path][1]

    def close(self) -> None:
        self._known.clear()


def _is_there(path: str, inode: int, segment: torch.Tensor) -> bool:
    """Return whether its owner still has a file at its path: one that is gone takes memory for as long as it is mapped."""
    try:
        return file_inode(path, nbytes=segment.numel()) == inode
    except ValueError:
        return False


def reserve(nbytes: int) -> int:
    """Return the descriptor of new memory, all of it allocated: writing to memory that is full would kill the process.

    Raises `OSError` where there is not as much; the kernel itself would kill a process to make room.
    """
    available, _ = available_bytes()
    if nbytes > available:
        raise OSError(errno.ENOMEM, f"no room for {nbytes} bytes of weights: {available} bytes of memory are available")
    descriptor = os.memfd_create("temper-weights")
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        os.close(descriptor)
        raise OSError(error.errno, f"no room for {nbytes} bytes of weights ({error.strerror})") from error
    return descriptor


def available_bytes(groups: Path = GROUPS) -> tuple[int, int]:
    """Return what can still be given here without taking memory from a process, and all that there is.

    That is the machine's, or less in a container or a job with a limit, which the kernel holds by killing processes: see
    `group_limits`.
    """
    with open("/proc/meminfo", encoding="ascii") as file:
        facts = dict(line.split(":") for line in file)
    available, total = (int(facts[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    own = Path("/proc/self/cgroup")  # not there where the kernel has no groups
    for limit, used in group_limits(groups, own.read_text(encoding="utf-8") if own.exists() else ""):
        available, total = min(available, max(0, limit - used)), min(total, limit)
    return available, total


def group_limits(groups: Path, member: str) -> list[tuple[int, int]]:
    """Return limit and use in bytes of every control group with a limit of memory that a process is in.

    `groups` is where the kernel shows them, in version 1 or 2, and `member` the text of `/proc/PID/cgroup`. Files in memory,
    which are given back before a process is killed, are not counted as used.
    """
    found = []
    for line in member.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        old = bool(controllers)
        base = groups / "memory" if old else groups
        own = base / path.lstrip("/")  # in a container it may not be shown, but as `base` alone
        for folder in (one for one in (own, *own.parents) if one.is_relative_to(base)):
            try:
                limit = int((folder / ("memory.limit_in_bytes" if old else "memory.max")).read_text(encoding="ascii"))
                used = int(
                    (folder / ("memory.usage_in_bytes" if old else "memory.current")).read_text(encoding="ascii")
                )
                facts = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
            except (OSError, ValueError):  # not there, or "max": no limit
                continue
            kept = [f"{'total_' if old else ''}{state}_file" for state in ("active", "inactive")]
            found.append((limit, used - sum(int(facts.get(name, 0)) for name in kept)))
    return found


def map_file(path: str, *, nbytes: int) -> torch.Tensor:
    """Return the bytes of a file as a uint8 tensor that shares memory with it. Raises `ValueError` like `file_inode`."""
    file_inode(path, nbytes=nbytes)
    return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8)


def file_inode(path: str, *, nbytes: int) -> int:
    """Return which file lies at a path. Raises `ValueError` where there is none of that size."""
    try:
        facts = os.stat(path)
    except FileNotFoundError as error:
        raise ValueError(f"the segment {path} is gone: push again") from error
    if facts.st_size != nbytes:
        raise ValueError(f"{path} has {facts.st_size} bytes, the push needs {nbytes}; push again")
    return facts.st_ino


PAUSE_S = 5.0
"""Least seconds between two times that a process gives memory back: its steps may be shorter."""


class _Next:
    """When this process gives back next."""

    at = 0.0


def release_free_memory(*, pause_s: float = PAUSE_S) -> None:
    """Give the freed pages of all heaps back where this process computes on a CPU, and its C library can do that.

    Nothing happens where it was done less than `pause_s` seconds ago.
    """
    now = time.monotonic()
    if now >= _Next.at and not torch.cuda.is_available() and (trim := _trim()) is not None:
        _Next.at = now + pause_s
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim

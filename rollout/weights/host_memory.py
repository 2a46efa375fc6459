"""Anonymous memory that other processes of this host map through /proc."""

import ctypes
import errno
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GROUPS = Path("/sys/fs/cgroup")
"""Mount point of control groups."""
SPARE = 0.1
"""Share of main memory to keep free besides the copy of a checkpoint. Clusters kill processes near the limit."""


class HostMemory:
    """Shared main memory. It is freed with the last process that maps it."""

    def __init__(self, nbytes: int) -> None:
        """Allocate all of it. Raises `OSError` if there is too little."""
        self._descriptor = reserve(nbytes)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        # Kept mapped: page faults of a new mapping cost as much as a copy into it.
        self.data = map_file(self.path, nbytes=nbytes)

    def close(self) -> None:
        """Stop other processes from opening it. Existing mappings stay valid."""
        os.close(self._descriptor)


class MappedFiles:
    """Mapped files of other processes, cached while they exist: a new mapping costs half a copy."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, torch.Tensor]] = {}

    def map(self, path: str, *, nbytes: int) -> "torch.Tensor":
        """Return the bytes of a file. Raises `ValueError` as `file_inode`."""
        inode = file_inode(path, nbytes=nbytes)
        self._known = {name: known for name, known in self._known.items() if _is_there(name, *known)}
        if path not in self._known:
            self._known[path] = inode, map_file(path, nbytes=nbytes)
        return self._known[path][1]

    def close(self) -> None:
        self._known.clear()


def _is_there(path: str, inode: int, segment: "torch.Tensor") -> bool:
    """Return whether the same file is still at its path. A mapping keeps a deleted file's memory."""
    try:
        return file_inode(path, nbytes=segment.numel()) == inode
    except ValueError:
        return False


def reserve(nbytes: int) -> int:
    """Return a descriptor of new, fully allocated memory. Writing to unallocated memory could kill the process.

    Raises `OSError` if there is too little. The kernel itself would kill a process.
    """
    available, _ = available_bytes()
    if nbytes > available:
        raise OSError(errno.ENOMEM, f"no memory for {nbytes} bytes of weights: {available} bytes are available")
    descriptor = os.memfd_create("temper-weights")
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        os.close(descriptor)
        raise OSError(error.errno, f"no memory for {nbytes} bytes of weights ({error.strerror})") from error
    return descriptor


def available_bytes(groups: Path = GROUPS) -> tuple[int, int]:
    """Return the available and the total memory, in bytes.

    In a container or a job the limits of its control groups count, which the kernel enforces by killing processes: see
    `group_limits`.
    """
    with open("/proc/meminfo", encoding="ascii") as file:
        facts = dict(line.split(":") for line in file)
    available, total = (int(facts[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    own = Path("/proc/self/cgroup")  # missing if the kernel has no groups
    for limit, used in group_limits(groups, own.read_text(encoding="utf-8") if own.exists() else ""):
        available, total = min(available, max(0, limit - used)), min(total, limit)
    return available, total


def group_limits(groups: Path, member: str) -> list[tuple[int, int]]:
    """Return limit and use in bytes of every control group of a process that has a memory limit.

    `groups` is the mount point, version 1 or 2. `member` is the text of `/proc/PID/cgroup`. Cached files do not count as
    used, because the kernel drops them first.
    """
    found = []
    for line in member.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        old = bool(controllers)
        base = groups / "memory" if old else groups
        own = base / path.lstrip("/")  # a container may show only `base`
        for folder in (one for one in (own, *own.parents) if one.is_relative_to(base)):
            try:
                limit = int((folder / ("memory.limit_in_bytes" if old else "memory.max")).read_text(encoding="ascii"))
                used = int(
                    (folder / ("memory.usage_in_bytes" if old else "memory.current")).read_text(encoding="ascii")
                )
                facts = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
            except (OSError, ValueError):  # missing or "max": no limit
                continue
            kept = [f"{'total_' if old else ''}{state}_file" for state in ("active", "inactive")]
            found.append((limit, used - sum(int(facts.get(name, 0)) for name in kept)))
    return found


def map_file(path: str, *, nbytes: int) -> "torch.Tensor":
    """Return the bytes of a file as a uint8 tensor that shares its memory. Raises `ValueError` as `file_inode`."""
    import torch  # slow: the memory of a machine is read without it

    file_inode(path, nbytes=nbytes)
    return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8)


def file_inode(path: str, *, nbytes: int) -> int:
    """Return the inode of a file. Raises `ValueError` if there is none of that size."""
    try:
        facts = os.stat(path)
    except FileNotFoundError as error:
        raise ValueError(f"the segment {path} no longer exists; push again") from error
    if facts.st_size != nbytes:
        raise ValueError(f"{path} has {facts.st_size} bytes, the push needs {nbytes}; push again")
    return facts.st_ino


PAUSE_S = 5.0
"""Least seconds between two releases: steps may be shorter."""


class _Next:
    """Time of the next release."""

    at = 0.0


def release_free_memory(*, pause_s: float = PAUSE_S) -> None:
    """Release the freed pages of all heaps, if this process computes on a CPU and its C library supports it.

    Does nothing within `pause_s` seconds after the last release.
    """
    import torch

    now = time.monotonic()
    if now >= _Next.at and not torch.cuda.is_available() and (trim := _trim()) is not None:
        _Next.at = now + pause_s
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim

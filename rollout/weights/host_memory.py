"""The main memory of this process's machine or container: how much is available, and the release of freed memory."""

import ctypes
import functools
import time
from collections.abc import Callable
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
"""Mount point of control groups."""
SPARE = 0.1
"""Share of main memory to keep free besides the copy of a checkpoint. Clusters kill processes near the limit."""


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


PAUSE_S = 5.0
"""Least seconds between two releases: steps may be shorter."""


class _Next:
    """Time of the next release."""

    at = 0.0


def release_free_memory(*, pause_s: float = PAUSE_S) -> None:
    """Release the freed pages of all heaps, if this process computes on a CPU and its C library supports it.

    Does nothing within `pause_s` seconds after the last release.
    """
    import torch  # slow: the memory of a machine is read without it

    now = time.monotonic()
    if now >= _Next.at and not torch.cuda.is_available() and (trim := _trim()) is not None:
        _Next.at = now + pause_s
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim

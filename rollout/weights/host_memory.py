"""Memory without a name in any folder, which other processes of this host map as a file of its owner under /proc."""

import errno
import os

import torch


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


def available_bytes() -> tuple[int, int]:
    """Return what this machine can still give without taking memory from a process, and all that it has."""
    with open("/proc/meminfo", encoding="ascii") as file:
        facts = dict(line.split(":") for line in file)
    available, total = (int(facts[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    return available, total


def map_file(path: str, *, nbytes: int) -> torch.Tensor:
    """Return the bytes of a file as a uint8 tensor that shares memory with it. Raises `ValueError` like `file_inode`."""
    file_inode(path, nbytes=nbytes)
    return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8)


def file_inode(path: str, *, nbytes: int) -> int:
    """Return which file lies at a path. Raises `ValueError` where there is none of that size."""
    try:
        facts = os.stat(path)
    except FileNotFoundError as error:
        raise ValueError(
            f"the segment {path} is gone: push again, or with learner.transport=ray if it is on another machine"
        ) from error
    if facts.st_size != nbytes:
        raise ValueError(f"{path} has {facts.st_size} bytes, the push needs {nbytes}; push again")
    return facts.st_ino

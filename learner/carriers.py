"""Where the bytes of a weight push lie until the engines have them."""

import atexit
import contextlib
import os
from typing import Protocol

import torch

from rollout.gpu_memory import segment_name
from rollout.manifest import map_segment

CPU = torch.device("cpu")
SEGMENTS = ("0", "1", "delta")


class Carrier(Protocol):
    """Gives room for segments, by name, and says how a receiver gets at them."""

    slots: int
    """How many whole segments must take turns, so that one that is being read is not overwritten."""

    def room(self, name: str, *, nbytes: int) -> torch.Tensor:
        """A uint8 tensor of that size to write to: the same one for the same name and size, contents included."""
        ...

    def path(self, name: str) -> str:
        """The segment's file; empty where the bytes travel as an argument."""
        ...

    def close(self) -> None:
        """Free the segments."""
        ...


class SharedMemory:
    """For engines on this host: a segment is a file `<prefix><name>` under /dev/shm, which they map.

    The files are removed on close and at the end of the process.
    """

    slots = 2

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        # Kept mapped: the page faults of a new mapping cost as much as the copy itself.
        self._mapped: dict[str, torch.Tensor] = {}
        atexit.register(self.close)

    def room(self, name: str, *, nbytes: int) -> torch.Tensor:
        """See `Carrier.room`. Raises `OSError` where /dev/shm is too small."""
        mapped = self._mapped.get(name)
        if mapped is None or mapped.numel() != nbytes:
            _reserve(self.path(name), nbytes=nbytes)
            mapped = self._mapped[name] = map_segment(self.path(name), nbytes=nbytes)
        return mapped

    def path(self, name: str) -> str:
        """See `Carrier.path`."""
        return f"{self.prefix}{name}"

    def close(self) -> None:
        """Remove the segments. Engines that have one mapped keep reading it."""
        self._mapped.clear()
        remove_segments(self.prefix)
        atexit.unregister(self.close)


class ProcessMemory:
    """For engines anywhere: segments lie in this process, and their bytes travel as an argument of a call, once a host, or
    from the memory of `device` by broadcast.
    """

    slots = 1

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[str, torch.Tensor] = {}

    def room(self, name: str, *, nbytes: int) -> torch.Tensor:
        """See `Carrier.room`."""
        held = self._held.get(name)
        if held is None or held.numel() != nbytes:
            held = self._held[name] = torch.zeros(nbytes, dtype=torch.uint8, device=self._device)
        return held

    def path(self, name: str) -> str:
        """See `Carrier.path`."""
        return ""

    def close(self) -> None:
        """Free the segments."""
        self._held.clear()


class GpuMemory(ProcessMemory):
    """For engines on this GPU: segments lie in its memory, and the engines read them there (CUDA IPC)."""

    slots = 2

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._names: dict[str, tuple[torch.Tensor, str]] = {}

    def path(self, name: str) -> str:
        """See `Carrier.path`. What was written to the segment is there then."""
        held = self._held[name]
        named, path = self._names.get(name, (None, ""))
        if named is not held:
            path = segment_name(held)
            self._names[name] = held, path
        torch.cuda.synchronize(self._device)
        return path

    def close(self) -> None:
        """Free the segments."""
        self._names.clear()
        super().close()


def require_carrier(kind: str) -> None:
    """Raises `ValueError` where a carrier can't be used on this machine."""
    if kind == "cuda_ipc" and not torch.cuda.is_available():
        raise ValueError("learner.carrier=cuda_ipc: the learner has no GPU; set learner.carrier=shared_memory")


def open_carrier(kind: str, *, prefix: str, device: torch.device = CPU) -> Carrier:
    """The carrier that `learner.carrier` names; `device` is the learner's."""
    if kind == "shared_memory":
        return SharedMemory(prefix)
    if kind == "cuda_ipc":
        return GpuMemory(device)
    return ProcessMemory(device if kind == "broadcast" else CPU)


def remove_segments(prefix: str) -> None:
    """Remove what carriers with this prefix left, for a process that was killed before it could."""
    for name in SEGMENTS:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{prefix}{name}")


def _reserve(path: str, *, nbytes: int) -> None:
    """Make a new file of that size, its memory allocated: writing to a full /dev/shm would kill the process."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # whoever has it mapped keeps reading what it was
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(descriptor, nbytes)
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        raise OSError(error.errno, f"no room for {nbytes} bytes of weights ({error.strerror})", path) from error
    finally:
        os.close(descriptor)

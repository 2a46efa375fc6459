"""Where the bytes of a weight push lie until the engines have them."""

import os
from typing import Protocol

import torch

from rollout.weights.gpu_memory import segment_name
from rollout.weights.manifest import map_segment, own_path, reserve

CPU = torch.device("cpu")


class Transport(Protocol):
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
    """For engines on this host: a segment is memory of this process, which they map as one of its files under /proc.

    It has no name in any folder, so it is gone with the last process that has it mapped, however that one ends.
    """

    slots = 2

    def __init__(self) -> None:
        # Kept mapped: the page faults of a new mapping cost as much as the copy itself.
        self._segments: dict[str, tuple[int, torch.Tensor]] = {}

    def room(self, name: str, *, nbytes: int) -> torch.Tensor:
        """See `Transport.room`. Raises `OSError` where there is not as much memory."""
        if name in self._segments and self._segments[name][1].numel() != nbytes:
            os.close(self._segments.pop(name)[0])  # whoever has it mapped keeps reading what it was
        if name not in self._segments:
            descriptor = reserve(nbytes)
            self._segments[name] = descriptor, map_segment(own_path(descriptor), nbytes=nbytes)
        return self._segments[name][1]

    def path(self, name: str) -> str:
        """See `Transport.path`."""
        return own_path(self._segments[name][0])

    def close(self) -> None:
        """Free the segments. Engines that have one mapped keep reading it."""
        for descriptor, _ in self._segments.values():
            os.close(descriptor)
        self._segments.clear()


class ProcessMemory:
    """For engines anywhere: segments lie in this process, and their bytes travel as an argument of a call, once a host, or
    from the memory of `device` by broadcast.
    """

    slots = 1

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[str, torch.Tensor] = {}

    def room(self, name: str, *, nbytes: int) -> torch.Tensor:
        """See `Transport.room`."""
        held = self._held.get(name)
        if held is None or held.numel() != nbytes:
            held = self._held[name] = torch.zeros(nbytes, dtype=torch.uint8, device=self._device)
        return held

    def path(self, name: str) -> str:
        """See `Transport.path`."""
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
        """See `Transport.path`. What was written to the segment is there then."""
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


def open_carrier(kind: str, *, device: torch.device = CPU) -> Transport:
    """The carrier that `learner.carrier` names; `device` is the learner's."""
    if kind == "shared_memory":
        return SharedMemory()
    if kind == "cuda_ipc":
        return GpuMemory(device)
    return ProcessMemory(device if kind == "broadcast" else CPU)

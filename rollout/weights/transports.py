"""Transports of a weight push, by the names of `learner.transport`, and their memory.

shared_memory   engines on the learner's machine map its memory; other machines get the bytes as a Ray object
broadcast       each rank sends its share in buckets: NCCL between GPUs, gloo between CPUs (`buckets.py`)
cuda_ipc        the only engine, on the learner's only GPU, opens its memory
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from temper.rollout.weights.config import AUTO, CUDA_IPC, SHARED_MEMORY
from temper.rollout.weights.gpu_memory import GpuMemory
from temper.rollout.weights.host_memory import HostMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Receivers:
    """The engines of a push: number of this set of engines, count of their processes, and the host at which they reach the
    sender.
    """

    number: int
    size: int
    host: str

    @property
    def on_one_machine(self) -> bool:
        """Whether all engines are on the sender's machine: they use loopback."""
        return self.host.startswith("127.")


class Memory(Protocol):
    """Memory that other processes find by its path."""

    data: torch.Tensor

    @property
    def path(self) -> str: ...

    def close(self) -> None: ...


def resolve_transport(transport: str) -> str:
    """Return the transport of a name, which may be `AUTO`."""
    return SHARED_MEMORY if transport == AUTO else transport


def is_non_blocking(transport: str) -> bool:
    """Return whether a push stays in main memory until the next one, so that the learner may train while engines load it."""
    return resolve_transport(transport) == SHARED_MEMORY


def require_usable(transport: str) -> None:
    """Raise `ValueError` if a learner in this process can't use the transport."""
    if transport == CUDA_IPC and not torch.cuda.is_available():
        raise ValueError(f"learner.transport={CUDA_IPC}: the learner has no GPU; set learner.transport={AUTO}")


def allocate(transport: str, nbytes: int, *, device: torch.device) -> Memory:
    """Return new memory for a push. Raises `OSError` if there is too little."""
    return GpuMemory(nbytes, device) if transport == CUDA_IPC else HostMemory(nbytes)


def make_offer(memory: Memory, receivers: Receivers) -> object:
    """Return a path that engines open, or for other machines the bytes, which Ray copies to each machine once."""
    local = receivers.on_one_machine or memory.data.is_cuda
    return memory.path if local else memory.data.numpy()

"""Transports of a weight push, by the names of `learner.transport`, and their memory.

shared_memory   engines on the learner's machine map its memory; other machines get the bytes as a Ray object
broadcast       each rank sends its share in buckets: NCCL between GPUs, gloo between CPUs (`buckets.py`)
cuda_ipc        the only engine, on the learner's only GPU, opens its memory
"""

import errno
import json
import os
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.multiprocessing.reductions import reduce_tensor

from temper.rollout.weights.config import AUTO, CUDA_IPC, SHARED_MEMORY
from temper.rollout.weights.host_memory import available_bytes

SCHEME = "cuda:"
"""The name of a segment on a GPU begins with it. Any other name is a path."""


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


class GpuMemory:
    """GPU memory that other processes can open while this object exists."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.data = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self._name = ""

    @property
    def path(self) -> str:
        """Its name. Earlier writes are visible to processes that open it."""
        self._name = self._name or segment_name(self.data)
        torch.cuda.synchronize(self.data.device)
        return self._name

    def close(self) -> None:
        """Do nothing: torch frees it with its last tensor."""


Memory = HostMemory | GpuMemory
"""Memory that other processes find by its path."""


def allocate(transport: str, nbytes: int, *, device: torch.device) -> Memory:
    """Return new memory for a push. Raises `OSError` if there is too little."""
    return GpuMemory(nbytes, device) if transport == CUDA_IPC else HostMemory(nbytes)


def make_offer(memory: Memory, receivers: Receivers) -> object:
    """Return a path that engines open, or for other machines the bytes, which Ray copies to each machine once."""
    local = receivers.on_one_machine or memory.data.is_cuda
    return memory.path if local else memory.data.numpy()


class MappedFiles:
    """Mapped files of other processes, cached while they exist: a new mapping costs half a copy."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, torch.Tensor]] = {}

    def map(self, path: str, *, nbytes: int) -> torch.Tensor:
        """Return the bytes of a file. Raises `ValueError` as `file_inode`."""
        inode = file_inode(path, nbytes=nbytes)
        self._known = {name: known for name, known in self._known.items() if _is_there(name, *known)}
        if path not in self._known:
            self._known[path] = inode, map_file(path, nbytes=nbytes)
        return self._known[path][1]

    def close(self) -> None:
        self._known.clear()


def _is_there(path: str, inode: int, segment: torch.Tensor) -> bool:
    """Return whether the same file is still at its path. A mapping keeps a deleted file's memory."""
    try:
        return file_inode(path, nbytes=segment.numel()) == inode
    except ValueError:
        return False


def map_file(path: str, *, nbytes: int) -> torch.Tensor:
    """Return the bytes of a file as a uint8 tensor that shares its memory. Raises `ValueError` as `file_inode`."""
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


def segment_name(segment: torch.Tensor) -> str:
    """Return a new name of a uint8 tensor on a GPU, valid while its owner keeps it.

    After later writes, synchronize the device before others read it.
    """
    torch.cuda.synchronize(segment.device)
    *_, handle, size, offset, _, counter, counter_offset, event, event_needed = reduce_tensor(segment)[1]
    uuid = str(torch.cuda.get_device_properties(segment.device).uuid)
    where = [handle.hex(), size, offset, counter.hex(), counter_offset, event.hex(), event_needed]
    return SCHEME + json.dumps([uuid, *where])


@lru_cache(maxsize=4)  # a segment serves many pushes, and opening it takes milliseconds
def open_segment(name: str, *, nbytes: int) -> torch.Tensor:
    """Return the tensor of a name, of `nbytes` bytes. Raises `ValueError` if it is on another GPU."""
    uuid, handle, size, offset, counter, counter_offset, event, event_needed = json.loads(name.removeprefix(SCHEME))
    ours = {str(torch.cuda.get_device_properties(n).uuid): n for n in range(torch.cuda.device_count())}
    if uuid not in ours:
        raise ValueError(
            f"the weights are on GPU {uuid}, this process has {', '.join(ours) or 'none'}; set learner.transport=auto"
        )
    storage = torch.UntypedStorage._new_shared_cuda(
        ours[uuid],
        bytes.fromhex(handle),
        size,
        offset,
        bytes.fromhex(counter),
        counter_offset,
        bytes.fromhex(event),
        event_needed,
    )
    return torch.empty(0, dtype=torch.uint8, device=ours[uuid]).set_(storage)[:nbytes]


def map_segment(path: str, *, nbytes: int, mapped: MappedFiles | None = None) -> torch.Tensor:
    """Return the bytes of a file, or of a GPU segment, as a uint8 tensor that shares its memory.

    Raises `ValueError` if it has another size, or can't be opened.
    """
    if path.startswith(SCHEME):
        return open_segment(path, nbytes=nbytes)
    return (mapped or MappedFiles()).map(path, nbytes=nbytes)

"""GPU memory that other processes on this machine open by name (CUDA IPC)."""

import json
from functools import lru_cache

import torch
from torch.multiprocessing.reductions import reduce_tensor

SCHEME = "cuda:"


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

"""Memory of a GPU, and names under which other processes on this machine open it (CUDA IPC)."""

import json
from functools import lru_cache

import torch
from torch.multiprocessing.reductions import reduce_tensor

SCHEME = "cuda:"


class GpuMemory:
    """So many bytes of a GPU's memory, which are there for other processes as long as this object is."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.data = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self._name = ""

    @property
    def path(self) -> str:
        """Its name. What was written to it before is there for whoever opens it."""
        self._name = self._name or segment_name(self.data)
        torch.cuda.synchronize(self.data.device)
        return self._name

    def close(self) -> None:
        """Do nothing: torch frees it with its last tensor."""


def segment_name(segment: torch.Tensor) -> str:
    """Return a name of a uint8 tensor on a GPU, good for as long as its owner keeps it. Each call makes another one.

    Whoever writes to the tensor later synchronises with the device before others read it.
    """
    torch.cuda.synchronize(segment.device)
    *_, handle, size, offset, _, counter, counter_offset, event, event_needed = reduce_tensor(segment)[1]
    uuid = str(torch.cuda.get_device_properties(segment.device).uuid)
    where = [handle.hex(), size, offset, counter.hex(), counter_offset, event.hex(), event_needed]
    return SCHEME + json.dumps([uuid, *where])


@lru_cache(maxsize=4)  # a segment is used for many pushes, and opening it takes milliseconds
def open_segment(name: str, *, nbytes: int) -> torch.Tensor:
    """Return the tensor that `segment_name` named, of `nbytes` bytes. Raises `ValueError` where it is on another GPU."""
    uuid, handle, size, offset, counter, counter_offset, event, event_needed = json.loads(name.removeprefix(SCHEME))
    ours = {str(torch.cuda.get_device_properties(n).uuid): n for n in range(torch.cuda.device_count())}
    if uuid not in ours:
        raise ValueError(
            f"the weights lie on GPU {uuid}, this process has {', '.join(ours) or 'none'}; set learner.transport=auto"
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

"""The transports that `learner.transport` can name: a new one is a file beside this one and a line below."""

from typing import Any

import torch

from temper.rollout.weights.transports.broadcast import Broadcast
from temper.rollout.weights.transports.cuda_ipc import CudaIpc
from temper.rollout.weights.transports.ray_objects import RayObjects
from temper.rollout.weights.transports.shared_memory import SharedMemory
from temper.rollout.weights.transports.transport import SegmentTransport, Transport

TRANSPORTS: dict[str, type[Transport]] = {
    SharedMemory.name: SharedMemory,
    RayObjects.name: RayObjects,
    Broadcast.name: Broadcast,
    CudaIpc.name: CudaIpc,
}


AUTO = "auto"
"""What leaves the choice to whoever knows the cluster; where nobody does, both ends are on one machine."""


def transport_kind(name: str) -> type[Transport]:
    """Return the transport of a name, which may be `AUTO`."""
    return TRANSPORTS[SharedMemory.name if name == AUTO else name]


def carries_buckets(name: str) -> bool:
    """Return whether weights travel in buckets by the transport of a name, else as a whole segment."""
    return transport_kind(name).buckets


def open_transport(name: str, *, device: torch.device | None = None) -> SegmentTransport[Any]:
    """Return a new end of the transport of that name, which carries segments. See `SegmentTransport`."""
    kind = transport_kind(name)
    assert issubclass(kind, SegmentTransport), f"{name} carries buckets"
    return kind(device=device)

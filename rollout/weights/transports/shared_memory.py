"""For engines on the learner's host: they map its memory."""

import torch

from temper.rollout.weights.host_memory import MappedFiles
from temper.rollout.weights.transports.transport import Audience, Placed, SegmentTransport


class SharedMemory(SegmentTransport[str]):
    """An offer is the path of a segment, which is gone with the learner's process."""

    name = "shared_memory"
    slots = 2
    one_machine = True
    sparse = True
    lasts = True
    adapters = True

    def __init__(self, *, device: torch.device | None = None) -> None:
        super().__init__(device=device)
        self._mapped = MappedFiles()

    def offer(self, name: str, audience: Audience) -> str:
        """See `SegmentTransport.offer`."""
        return self._held[name].path

    def take(self, offer: str, *, number: int, nbytes: int) -> Placed:
        """Map the learner's segment. Raises `ValueError` where it is gone, or of another size."""
        return Placed(segment=self._mapped.map(offer, nbytes=nbytes), path=offer)

    def close(self) -> None:
        """See `SegmentTransport.close`."""
        self._mapped.close()
        super().close()

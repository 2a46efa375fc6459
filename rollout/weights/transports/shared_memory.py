"""For engines on the learner's host: they map its memory."""

import torch

from rollout.weights.host_memory import file_inode, map_file
from rollout.weights.transports.transport import TIMEOUT_S, Audience, Placed, Transport


class SharedMemory(Transport[str]):
    """An offer is the path of a segment, which is gone with the learner's process."""

    name = "shared_memory"
    slots = 2
    sparse = True

    def __init__(self, *, device: torch.device | None = None, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(device=device, timeout_s=timeout_s)
        self._mapped: dict[str, tuple[int, torch.Tensor]] = {}

    def offer(self, name: str, audience: Audience) -> str:
        """See `Transport.offer`."""
        return self._held[name].path

    def take(self, offer: str, *, number: int, nbytes: int) -> Placed:
        """Map the learner's segment. Raises `ValueError` where it is gone, or of another size."""
        inode = file_inode(offer, nbytes=nbytes)
        known, segment = self._mapped.get(offer, (0, None))
        if segment is None or known != inode:  # kept for later pushes: a new mapping costs half of what copying would
            segment = map_file(offer, nbytes=nbytes)
            self._mapped[offer] = inode, segment
        return Placed(segment=segment, path=offer)

    def close(self) -> None:
        """See `Transport.close`."""
        self._mapped.clear()
        super().close()

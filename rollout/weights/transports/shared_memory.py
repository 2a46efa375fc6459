"""For engines on the learner's host: they map its memory."""

import torch

from rollout.weights.host_memory import file_inode, map_file
from rollout.weights.transports.transport import TIMEOUT_S, Audience, Placed, Transport


class SharedMemory(Transport[str]):
    """An offer is the path of a segment, which is gone with the learner's process."""

    name = "shared_memory"
    slots = 2
    one_machine = True
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
        self._mapped = {path: known for path, known in self._mapped.items() if _is_there(path, *known)}
        if offer not in self._mapped:  # kept for later pushes: a new mapping costs half of what copying would
            self._mapped[offer] = inode, map_file(offer, nbytes=nbytes)
        return Placed(segment=self._mapped[offer][1], path=offer)

    def close(self) -> None:
        """See `Transport.close`."""
        self._mapped.clear()
        super().close()


def _is_there(path: str, inode: int, segment: torch.Tensor) -> bool:
    """Return whether the learner still has a segment at its path: one that is gone takes memory for as long as it is mapped."""
    try:
        return file_inode(path, nbytes=segment.numel()) == inode
    except ValueError:
        return False

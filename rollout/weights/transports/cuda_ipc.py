"""For engines on the learner's GPU: they read its memory there (CUDA IPC)."""

import torch

from temper.rollout.weights.gpu_memory import GpuMemory, open_segment
from temper.rollout.weights.transports.transport import Audience, Memory, Placed, SegmentTransport


class CudaIpc(SegmentTransport[str]):
    """An offer is the name of a segment in the GPU's memory."""

    name = "cuda_ipc"
    medium = "GPU memory"
    slots = 2
    one_machine = True
    one_gpu = True

    @classmethod
    def require(cls) -> None:
        """See `Transport.require`."""
        if not torch.cuda.is_available():
            raise ValueError("learner.transport=cuda_ipc: the learner has no GPU; set learner.transport=auto")

    def offer(self, name: str, audience: Audience) -> str:
        """See `Transport.offer`."""
        return self._held[name].path

    def take(self, offer: str, *, number: int, nbytes: int) -> Placed:
        """Open the learner's segment. Raises `ValueError` where it lies on another GPU."""
        return Placed(segment=open_segment(offer, nbytes=nbytes), path=offer)

    def allocate(self, nbytes: int) -> Memory:
        """See `Transport.allocate`."""
        return GpuMemory(nbytes, self.device)

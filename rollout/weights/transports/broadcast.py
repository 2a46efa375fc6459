"""For engines anywhere: the learner sends to all of them at once, by NCCL where all have GPUs of their own, else by gloo."""

from dataclasses import replace

import torch

from rollout.weights.gpu_memory import GpuMemory
from rollout.weights.host_memory import HostMemory
from rollout.weights.process_group import GroupMember, ProcessGroup
from rollout.weights.transports.transport import TIMEOUT_S, Audience, Memory, Placed, Transport

ARRIVED = "arrived"


class Broadcast(Transport[GroupMember]):
    """An offer is the learner's membership of a process group; engine n is member n + 1.

    The group is opened at the first push and serves all later ones to the same audience.
    """

    name = "broadcast"

    def __init__(self, *, device: torch.device | None = None, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(device=device, timeout_s=timeout_s)
        self._group: ProcessGroup | None = None
        self._audience: Audience | None = None

    def offer(self, name: str, audience: Audience) -> GroupMember:
        """See `Transport.offer`. Begins to listen where the engines meet."""
        if self._group is None or self._audience != audience:
            first = GroupMember(host=audience.host, port=0, rank=0, size=audience.size + 1, timeout_s=self.timeout_s)
            self._group, self._audience = ProcessGroup(first), audience
        return self._group.member

    def send(self, name: str) -> None:
        """Send a segment. Raises `RuntimeError` where a member is missing for the seconds of the group."""
        assert self._group is not None, "it was offered before"
        self._group.broadcast(self._held[name].data)

    def take(self, offer: GroupMember, *, number: int, nbytes: int) -> Placed:
        """Receive what is sent at this moment, on the GPU where there is one."""
        member = replace(offer, rank=number + 1)
        if self._group is None or self._group.member != member:
            self._group = ProcessGroup(member)
        memory = self._memory(ARRIVED, nbytes=nbytes)
        self._group.broadcast(memory.data)
        return Placed(segment=memory.data, path=memory.path)

    def allocate(self, nbytes: int) -> Memory:
        """See `Transport.allocate`."""
        return GpuMemory(nbytes, self.device) if self.device.type == "cuda" else HostMemory(nbytes)

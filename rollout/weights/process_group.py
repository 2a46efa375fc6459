"""The group of processes in which a weight push is broadcast: the learner's first rank sends, the rollout workers receive.

It stands beside whatever groups training and engines have of their own. Between GPUs it is NCCL, which needs a GPU for each
process, between CPUs gloo.
"""

import socket
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A process's place in the group. Rank 0 sends, and all meet at its address; port 0 stands for any free one.

    A process waits `timeout_s` seconds for the others, to meet and in each broadcast.
    """

    host: str
    port: int
    rank: int
    size: int
    timeout_s: float


ALONE_S = 40.0
SLOWEST = 100e6
"""How long a process waits for the others between CPUs, to meet and for a broadcast, whose bytes may each second be so few.
Where one dies, others may be waiting for its neighbours, which never hear of it."""


class ProcessGroup:
    """One process's end of the group. The processes join each other in their first broadcast, all at the same time."""

    def __init__(self, member: GroupMember) -> None:
        """Open the store. Raises `DistStoreError` of torch where no rank 0 answers in time."""
        self._timeout = timedelta(seconds=member.timeout_s)
        self.member, self._store = open_store(member)
        self._group: Any = None

    def broadcast(self, segment: torch.Tensor) -> None:
        """Send the segment's bytes from rank 0, or receive them into it. Every process gives the same size.

        Raises `RuntimeError` where one of them dies, or is missing for `timeout_s` seconds, between CPUs for less. The group
        is left then: nobody meets in it again.
        """
        limit = self._limit(segment)
        try:
            if self._group is None:
                self._group = self._join(segment.device)
            options = dist.BroadcastOptions()
            options.rootRank = 0
            options.timeout = limit
            self._group.broadcast([segment], options).wait(limit)
        except BaseException:
            self._group = None
            raise
        if segment.is_cuda:
            torch.cuda.synchronize(segment.device)  # NCCL's wait is the stream's, not this process's

    def _limit(self, segment: torch.Tensor) -> timedelta:
        if segment.is_cuda:
            return self._timeout
        return min(self._timeout, timedelta(seconds=ALONE_S + segment.numel() / SLOWEST))

    def _join(self, device: torch.device) -> Any:
        rank, size = self.member.rank, self.member.size
        if device.type == "cuda":
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = self._timeout
            return dist.ProcessGroupNCCL(self._store, rank, size, nccl)
        gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        gloo._timeout = min(self._timeout, timedelta(seconds=ALONE_S))
        gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=_own_address(self.member))]
        return dist.ProcessGroupGloo(self._store, rank, size, gloo)


def open_store(member: GroupMember) -> tuple[GroupMember, Any]:
    """Return the member with its port, and the store where the processes of a group meet. Rank 0 listens, at its host alone.

    Raises `DistStoreError` of torch where no rank 0 answers in time.
    """
    listening: dict[str, Any] = {}
    if member.rank == 0:  # torch itself would listen on every interface
        server = socket.create_server((member.host, member.port))
        member = replace(member, port=server.getsockname()[1])
        listening = {"master_listen_fd": server.detach(), "wait_for_workers": False}
    timeout = timedelta(seconds=member.timeout_s)
    store = dist.TCPStore(  # type: ignore[attr-defined, unused-ignore]  # as torch was built
        member.host, member.port, member.size, is_master=member.rank == 0, timeout=timeout, **listening
    )
    return member, store


def _own_address(member: GroupMember) -> str:
    """Return the address of this machine towards the meeting place."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((member.host, member.port))  # sends nothing
        address: str = probe.getsockname()[0]
        return address

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
class Seat:
    """A process's place in the group. Rank 0 sends, and all meet at its address; port 0 stands for any free one.

    A process waits `timeout_s` seconds for the others, to meet and in each broadcast.
    """

    host: str
    port: int
    rank: int
    size: int
    timeout_s: float


class WeightGroup:
    """One process's end of the group. The processes join each other in their first broadcast, all at the same time."""

    def __init__(self, seat: Seat) -> None:
        """Raises `DistStoreError` of torch where no rank 0 answers in time."""
        self._timeout = timedelta(seconds=seat.timeout_s)
        self.seat, self._store = open_store(seat)
        self._group: Any = None

    def broadcast(self, segment: torch.Tensor) -> None:
        """Send the segment's bytes from rank 0, or receive them into it. Every process gives the same size.

        Raises `RuntimeError` where one of them is missing for the seat's seconds.
        """
        if self._group is None:
            self._group = self._join(segment.device)
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([segment], options).wait(self._timeout)
        if segment.is_cuda:
            torch.cuda.synchronize(segment.device)  # NCCL's wait is the stream's, not this process's

    def _join(self, device: torch.device) -> Any:
        rank, size = self.seat.rank, self.seat.size
        if device.type == "cuda":
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = self._timeout
            return dist.ProcessGroupNCCL(self._store, rank, size, nccl)
        gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        gloo._timeout = self._timeout
        gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=_own_address(self.seat))]
        return dist.ProcessGroupGloo(self._store, rank, size, gloo)


def open_store(seat: Seat) -> tuple[Seat, Any]:
    """The seat with its port, and the store where the processes of a group meet. Rank 0 listens, at its host alone.

    Raises `DistStoreError` of torch where no rank 0 answers in time.
    """
    listening: dict[str, Any] = {}
    if seat.rank == 0:  # torch itself would listen on every interface
        server = socket.create_server((seat.host, seat.port))
        seat = replace(seat, port=server.getsockname()[1])
        listening = {"master_listen_fd": server.detach(), "wait_for_workers": False}
    timeout = timedelta(seconds=seat.timeout_s)
    store = dist.TCPStore(  # type: ignore[attr-defined, unused-ignore]  # as torch was built
        seat.host, seat.port, seat.size, is_master=seat.rank == 0, timeout=timeout, **listening
    )
    return seat, store


def _own_address(seat: Seat) -> str:
    """The address of this machine towards the meeting place."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((seat.host, seat.port))  # sends nothing
        address: str = probe.getsockname()[0]
        return address

"""A group of processes in which buckets of weights are broadcast: a rank of the learner sends, the engines' receive.

It stands beside whatever groups training and engines have of their own. Between GPUs it is NCCL, which needs a GPU for each
process, between CPUs gloo.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from time import monotonic
from typing import Any

import psutil
import torch
import torch.distributed as dist

ALONE_S = 40.0
LEAST = timedelta(seconds=1)
SLOWEST = 100e6
"""How long a process waits for the others, to meet and for a broadcast, whose bytes may each second be so few: far less than an
engine has for a push. Where one dies, others may be waiting for its neighbours, which never hear of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A process's place in the group. Rank 0 sends, and all meet at its address; port 0 stands for any free one.

    A process waits `timeout_s` seconds for the others, to meet and in each broadcast, or less: see `ALONE_S`.
    """

    host: str
    port: int
    rank: int
    size: int
    timeout_s: float

    def limit(self, nbytes: int = 0) -> timedelta:
        """Return how long a broadcast of so many bytes may take; of none, how long the others may be awaited to meet."""
        return timedelta(seconds=min(self.timeout_s, ALONE_S + nbytes / SLOWEST))


RAISES = "TORCH_NCCL_BLOCKING_WAIT"
"""With it a wait that passes its limit aborts the group and raises; without it torch may end the process."""


class ProcessGroup:
    """One process's end of the group. The processes join each other in `join`, or else in their first broadcast, all at the
    same time.
    """

    def __init__(self, member: GroupMember, store: Any, *, name: str) -> None:
        """`store` is where the processes meet, and `name` tells the groups that meet there from each other."""
        self.member = member
        self._store = dist.PrefixStore(name, store)
        self._group: Any = None

    def join(self, device: torch.device) -> None:
        """Meet the other processes, whose broadcasts will be of this device.

        Raises `RuntimeError` if one of them is missing for the limit of the group.
        """
        limit, began = self.member.limit(), monotonic()
        self._group = self._join(device)
        left = max(limit - timedelta(seconds=monotonic() - began), LEAST)
        self._begin(
            torch.zeros(1, dtype=torch.uint8, device=device), left
        )()  # NCCL connects in the first broadcast only

    def begin(self, segment: torch.Tensor) -> Callable[[], None]:
        """Begin to send the segment's bytes from rank 0, or to receive them into it; returns what waits until that is done.

        Every process gives the same size. Both raise `RuntimeError` where one of them dies, or is missing for the limit of
        these bytes: nobody meets in the group again then.
        """
        if self._group is None:
            self._group = self._join(segment.device)
        return self._begin(segment, self.member.limit(segment.numel()))

    def _begin(self, segment: torch.Tensor, limit: timedelta) -> Callable[[], None]:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.timeout = limit
        work = self._group.broadcast([segment], options)
        return lambda: _wait(work, segment, limit)

    def _join(self, device: torch.device) -> Any:
        rank, size = self.member.rank, self.member.size
        if device.type == "cuda":
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = self.member.limit()
            self._store.set_timeout(self.member.limit())  # they meet there, at the first broadcast
            return _raising_group(self._store, rank, size, nccl)
        gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        gloo._timeout = self.member.limit()
        gloo._devices = [
            dist.ProcessGroupGloo.create_device(hostname=find_own_address(self.member.host, self.member.port))
        ]
        return dist.ProcessGroupGloo(self._store, rank, size, gloo)


def _raising_group(store: Any, rank: int, size: int, options: Any) -> Any:
    """Return a group of NCCL's whose waits raise. It reads that from the environment when it is made: others keep theirs."""
    before = os.environ.get(RAISES)
    os.environ[RAISES] = "1"
    try:
        return dist.ProcessGroupNCCL(store, rank, size, options)
    finally:
        if before is None:
            del os.environ[RAISES]
        else:
            os.environ[RAISES] = before


def open_store(member: GroupMember) -> tuple[GroupMember, Any]:
    """Return the member with its port, and the store where the processes of a group meet. Rank 0 listens, at its host alone.

    Raises `DistStoreError` of torch where no rank 0 answers in time.
    """
    if member.rank:
        return member, _store(member, limit=timedelta(seconds=member.timeout_s))
    server = socket.create_server((member.host, member.port))  # torch itself would listen on every interface
    member = replace(member, port=server.getsockname()[1])
    return member, _store(member, limit=timedelta(seconds=member.timeout_s), listening=server.detach())


def connect_store(member: GroupMember) -> Any:
    """Return the store where the processes of a group meet, which another process has opened by now.

    Raises like `open_store`, but after no more than `ALONE_S` seconds.
    """
    return _store(member, limit=member.limit())


def _store(member: GroupMember, *, limit: timedelta, listening: int | None = None) -> Any:
    """Return a store, which has the descriptor of the socket where it is `listening`, and waits no longer than the limit."""
    listens: dict[str, Any] = {} if listening is None else {"master_listen_fd": listening}
    return dist.TCPStore(  # type: ignore[attr-defined, unused-ignore]  # as torch was built
        member.host,
        member.port,
        member.size,
        is_master=listening is not None,
        timeout=limit,
        wait_for_workers=False,
        **listens,
    )


def _wait(work: Any, segment: torch.Tensor, limit: timedelta) -> None:
    work.wait(limit)
    if segment.is_cuda:
        # NCCL's wait is the stream's, not this process's. The next broadcast has another stream, and continues.
        torch.cuda.current_stream(segment.device).synchronize()


def find_own_address(host: str, port: int) -> str:
    """Return the address of this machine towards another one's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing
        address: str = probe.getsockname()[0]
        return address


def find_interface(host: str, port: int) -> str:
    """Return the name of this machine's network interface towards an address."""
    own = find_own_address(host, port)
    names = [name for name, addresses in psutil.net_if_addrs().items() if own in [one.address for one in addresses]]
    return names[0]

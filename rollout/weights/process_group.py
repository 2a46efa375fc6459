"""A process group for broadcasts of buckets from one rank of the learner to all engine processes.

It is independent of the groups for training and inside engines. It uses NCCL between GPUs, with one GPU per process, and
gloo between CPUs.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from time import monotonic
from typing import Any

import psutil
import torch
import torch.distributed as dist

from temper.envs.core.process import set_variables

ALONE_S = 40.0
LEAST = timedelta(seconds=1)
SLOWEST = 100e6
"""Longest wait for other processes, and lowest assumed speed of a broadcast in bytes per second. They are far below an
engine's deadline for a push: if one process dies, others may wait for its neighbors, which do not detect it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A process's place in the group. Rank 0 sends, and all meet at its address. Port 0 takes any free one.

    A process waits at most `timeout_s` seconds for the others, to meet and in each broadcast. See `ALONE_S`.
    """

    host: str
    port: int
    rank: int
    size: int
    timeout_s: float

    def limit(self, nbytes: int = 0) -> timedelta:
        """Return the timeout of a broadcast of `nbytes`, or without bytes of meeting."""
        return timedelta(seconds=min(self.timeout_s, ALONE_S + nbytes / SLOWEST))


RAISES = "TORCH_NCCL_BLOCKING_WAIT"
"""With it a late wait aborts the group and raises. Without it torch may end the process."""


class ProcessGroup:
    """One process's end of the group. Processes meet in `join`, or else in their first broadcast, all at the same time."""

    def __init__(self, member: GroupMember, store: Any, *, name: str) -> None:
        """`store` is where the processes meet. `name` separates the groups on it."""
        self.member = member
        self._store = dist.PrefixStore(name, store)
        self._group: Any = None

    def join(self, device: torch.device) -> None:
        """Meet the other processes, for broadcasts on this device.

        Raises `RuntimeError` if one is missing for the timeout.
        """
        limit, began = self.member.limit(), monotonic()
        self._group = self._join(device)
        left = max(limit - timedelta(seconds=monotonic() - began), LEAST)
        self._begin(
            torch.zeros(1, dtype=torch.uint8, device=device), left
        )()  # NCCL connects in the first broadcast only

    def begin(self, segment: torch.Tensor) -> Callable[[], None]:
        """Begin to broadcast the segment from rank 0. Return a function that waits for the end.

        All processes need the same size. Both raise `RuntimeError` if a process dies, or is missing for the timeout. The
        group is unusable then.
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
    """Return an NCCL group whose waits raise. The variable applies to groups made under it, not to others."""
    with set_variables({RAISES: "1"}):
        return dist.ProcessGroupNCCL(store, rank, size, options)


def open_store(member: GroupMember) -> tuple[GroupMember, Any]:
    """Return the member with its port, and the group's store. Rank 0 listens, only at its host.

    Raises torch's `DistStoreError` if rank 0 does not answer in time.
    """
    if member.rank:
        return member, _store(member, limit=timedelta(seconds=member.timeout_s))
    server = socket.create_server((member.host, member.port))  # torch itself would listen on every interface
    member = replace(member, port=server.getsockname()[1])
    return member, _store(member, limit=timedelta(seconds=member.timeout_s), listening=server.detach())


def connect_store(member: GroupMember) -> Any:
    """Return the group's store, which another process has opened.

    Raises as `open_store`, but after at most `ALONE_S` seconds.
    """
    return _store(member, limit=member.limit())


def _store(member: GroupMember, *, limit: timedelta, listening: int | None = None) -> Any:
    """Return a store with this timeout. `listening` is the descriptor of a server's socket."""
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
        # NCCL's wait blocks the stream, not this process. The next broadcast uses another stream.
        torch.cuda.current_stream(segment.device).synchronize()


def find_own_address(host: str, port: int) -> str:
    """Return this machine's address on the route to another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing
        address: str = probe.getsockname()[0]
        return address


def find_interface(host: str, port: int) -> str:
    """Return the name of this machine's network interface on the route to an address."""
    own = find_own_address(host, port)
    names = [name for name, addresses in psutil.net_if_addrs().items() if own in [one.address for one in addresses]]
    return names[0]

"""A process of a run that is watched, as those see it who watch: its name, its place, its signs of life, its end."""

from dataclasses import dataclass
from typing import Literal, Protocol

from temper.envs.core.pulse import Pulse

MemberState = Literal["starting", "serving", "asleep", "draining"]
"""What a process does: it is asleep while another one has the device that they share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a process runs: its number and the name of its machine, which others of the cluster may have too.

    `node` is how the cluster calls its node, None for that of the driver.
    """

    pid: int
    host: str
    node: str | None = None

    def __str__(self) -> str:
        """Return the place, for people."""
        return f"process {self.pid} on {self.host}" + ("" if self.node is None else f", node {self.node[:8]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a process has on its device, and how much memory it takes, in bytes.

    `states` are those of the optimiser, gradients and a reference, `cache` is the keys and values of an engine. `main` is the
    main memory of the process that computes, which on a CPU is the device; `device` is what is taken of a GPU, by all who
    share it, None on a CPU.
    """

    weights: int = 0
    states: int = 0
    cache: int = 0
    main: int = 0
    device: int | None = None


class Member(Protocol):
    """A rollout worker or a rank of the learner, wherever it runs."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> Place | None:
        """Where it runs; None until it does."""
        ...

    async def pulse(self) -> Pulse:
        """Return its signs of life."""
        ...

    def kill(self) -> None:
        """End the process at once; nothing where it has ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberNow:
    """What a rollout worker or a rank does. `watched` says whether it is to give signs of life, which it need not while it
    starts; `tickets` are its groups in flight.
    """

    name: str
    state: MemberState
    member: Member
    watched: bool = True
    tickets: tuple[int, ...] = ()
    restarts: int = 0

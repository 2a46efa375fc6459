"""What a run's weights travel by: as its settings say, where that can be, or by what its cluster is."""

from dataclasses import dataclass

import ray

from temper.rollout.weights.transports.broadcast import Broadcast
from temper.rollout.weights.transports.catalog import AUTO, TRANSPORTS
from temper.rollout.weights.transports.ray_objects import RayObjects
from temper.rollout.weights.transports.shared_memory import SharedMemory

STORE = "object_store_memory"
"""What Ray calls the room for objects on a machine, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a run's processes stand on: how many machines may hold them, how many GPUs they have, whether learner and engines
    share their devices, and in bytes the main memory that the machine of rank 0 can give and the smallest object store of
    Ray's.
    """

    machines: int
    gpus: int
    shared: bool
    memory: int
    object_store: int

    @classmethod
    def of_cluster(cls, *, gpus: int, shared: bool, memory: int) -> "Ground":
        """Return that of the cluster as it is now, of whose GPUs the processes have so many."""
        needed = "GPU" if gpus else "CPU"  # a machine that offers none, such as a head that only leads, gets no process
        fit = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get(needed)]
        return cls(
            machines=len(fit),
            gpus=gpus,
            shared=shared,
            memory=memory,
            object_store=int(min(node["Resources"].get(STORE, 0) for node in fit)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A transport by its name, and why it is this one."""

    transport: str
    why: str


def choose(wanted: str, ground: Ground, *, sparse: bool, nbytes: int) -> Choice:
    """Return what pushes of `nbytes` bytes travel by where `learner.transport` is `wanted`, `sparse` as `learner.sparse_push`.

    Raises `ValueError` where it does not reach the engines on this ground, or finds no room there.
    """
    if wanted == AUTO:
        choice = _by_ground(ground, sparse=sparse)
    else:
        choice = Choice(transport=wanted, why=f"learner.transport={wanted}")
        _require_reach(wanted, ground)
    _require_room(choice.transport, ground, nbytes=nbytes)
    return choice


def _by_ground(ground: Ground, *, sparse: bool) -> Choice:
    if ground.gpus and not ground.shared and not sparse:
        return Choice(transport=Broadcast.name, why="each process has a GPU of its own")
    if ground.machines > 1:
        return Choice(
            transport=RayObjects.name, why=f"the cluster has {ground.machines} machines for learner and engines"
        )
    return Choice(transport=SharedMemory.name, why="learner and engines are on one machine")


def _require_reach(name: str, ground: Ground) -> None:
    kind = TRANSPORTS[name]
    if kind.one_machine and ground.machines > 1:
        raise ValueError(
            f"learner.transport={name} reaches engines on the learner's machine alone, and the cluster has {ground.machines} "
            f"that may hold them; set learner.transport={AUTO}"
        )
    if kind.own_devices and ground.shared:
        raise ValueError(
            f"learner.transport={name} sends what the learner has on its devices, and here engines share these with it; set "
            f"learner.transport={AUTO}"
        )
    if kind.one_gpu and ground.gpus != 1:
        raise ValueError(
            f"learner.transport={name} needs one rank and one engine on the same GPU, and here they have "
            f"{ground.gpus or 'no'} GPUs; set learner.transport={AUTO}"
        )


def _require_room(name: str, ground: Ground, *, nbytes: int) -> None:
    """Raise `ValueError` where pushes are larger than what they travel through: memory of no name, or Ray's object store."""
    medium, needed = TRANSPORTS[name].medium, nbytes * TRANSPORTS[name].slots
    if medium == "main memory" and needed > ground.memory:
        raise ValueError(
            f"learner.transport={name} keeps {needed:,} bytes of weights in main memory, of which {ground.memory:,} are "
            f"available; set learner.wire_dtype=bfloat16, or use a machine with more"
        )
    if medium == "object store" and nbytes > ground.object_store:
        raise ValueError(
            f"learner.transport={name}: {nbytes:,} bytes of weights do not fit into Ray's object store of "
            f"{ground.object_store:,} bytes on one of the machines; start Ray there with a larger --object-store-memory (and "
            f"/dev/shm, which it lies in), or set learner.wire_dtype=bfloat16"
        )

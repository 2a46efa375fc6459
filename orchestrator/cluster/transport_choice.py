"""What a run's weights travel by: as its settings say, where that can be, or by what its cluster is."""

from dataclasses import dataclass

import ray

from temper.rollout.weights.transports import AUTO, BROADCAST, COPIES, CUDA_IPC, SHARED_MEMORY

STORE = "object_store_memory"
"""What Ray calls the room for objects on a machine, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The processes' ground: machines that may hold them, their GPUs, whether learner and engines share these, and in bytes the
    main memory of rank 0's machine and the smallest object store of Ray's.
    """

    machines: int
    gpus: int
    colocated: bool
    memory: int
    object_store: int

    @classmethod
    def read(cls, *, gpus: int, colocated: bool, memory: int) -> "ClusterFacts":
        """Return that of the cluster as it is now, of whose GPUs the processes have so many."""
        needed = "GPU" if gpus else "CPU"  # a machine that offers none, such as a head that only leads, gets no process
        fit = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get(needed)]
        return cls(
            machines=len(fit),
            gpus=gpus,
            colocated=colocated,
            memory=memory,
            object_store=int(min(node["Resources"].get(STORE, 0) for node in fit)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportChoice:
    """A transport by its name, and why it is this one."""

    transport: str
    why: str


def choose_transport(wanted: str, facts: ClusterFacts, *, nbytes: int) -> TransportChoice:
    """Return what pushes of `nbytes` bytes travel by if `learner.transport` is `wanted`.

    Raise `ValueError` if it does not reach the engines on this ground, or finds no room there.
    """
    if wanted == AUTO:
        choice = _choose_for_cluster(facts)
    else:
        choice = TransportChoice(transport=wanted, why=f"learner.transport={wanted}")
        _require_reach(wanted, facts)
    if choice.transport == SHARED_MEMORY:
        _require_memory(facts, nbytes=nbytes)
    return choice


def _choose_for_cluster(facts: ClusterFacts) -> TransportChoice:
    if facts.gpus and not facts.colocated:
        return TransportChoice(transport=BROADCAST, why="each process has a GPU of its own")
    if facts.machines > 1:
        why = f"through Ray's object store, as {facts.machines} machines may hold learner and engines"
        return TransportChoice(transport=SHARED_MEMORY, why=why)
    return TransportChoice(transport=SHARED_MEMORY, why="learner and engines are on one machine")


def _require_reach(transport: str, facts: ClusterFacts) -> None:
    if transport == BROADCAST and facts.colocated:
        raise ValueError(
            f"learner.transport={BROADCAST} sends what the learner has on its devices, and here engines share these with it; "
            f"set learner.transport={AUTO}"
        )
    if transport == CUDA_IPC and (facts.gpus != 1 or facts.machines > 1):
        raise ValueError(
            f"learner.transport={CUDA_IPC} needs one rank and one engine on the same GPU, and here they have "
            f"{facts.gpus or 'no'} GPUs on {facts.machines} machines; set learner.transport={AUTO}"
        )


def _require_memory(facts: ClusterFacts, *, nbytes: int) -> None:
    """Raise `ValueError` if pushes are larger than the main memory of rank 0's machine, or than Ray's object store."""
    needed = COPIES * nbytes
    if needed > facts.memory:
        raise ValueError(
            f"learner.transport={SHARED_MEMORY} keeps {needed:,} bytes of weights in main memory, of which "
            f"{facts.memory:,} are available; set learner.wire_dtype=bfloat16, or use a machine with more"
        )
    if facts.machines > 1 and nbytes > facts.object_store:
        raise ValueError(
            f"learner.transport={SHARED_MEMORY}: {nbytes:,} bytes of weights do not fit into Ray's object store of "
            f"{facts.object_store:,} bytes on one of the machines; start Ray there with a larger --object-store-memory (and "
            f"/dev/shm, which it lies in), or set learner.wire_dtype=bfloat16"
        )

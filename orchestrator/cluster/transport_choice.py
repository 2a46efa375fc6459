"""The transport of a run's weights: as set, if the cluster supports it, or chosen by the cluster."""

from dataclasses import dataclass

from temper.rollout.weights.config import AUTO, BROADCAST, COPIES, CUDA_IPC, SHARED_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Facts of the run's cluster: machines, GPUs of its processes, and whether learner and engines share GPUs.

    `memory` is the main memory of rank 0's machine and `object_store` Ray's smallest object store, in bytes.
    """

    machines: int
    gpus: int
    colocated: bool
    memory: int
    object_store: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportChoice:
    """A transport by its name, and the reason."""

    transport: str
    why: str


def choose_transport(wanted: str, facts: ClusterFacts, *, nbytes: int) -> TransportChoice:
    """Return the transport for pushes of `nbytes` bytes if `learner.transport` is `wanted`.

    Raise `ValueError` if it does not reach the engines or needs too much memory.
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
        return TransportChoice(transport=BROADCAST, why="each process has its own GPU")
    if facts.machines > 1:
        why = f"through Ray's object store, as {facts.machines} machines may hold learner and engines"
        return TransportChoice(transport=SHARED_MEMORY, why=why)
    return TransportChoice(transport=SHARED_MEMORY, why="learner and engines are on one machine")


def _require_reach(transport: str, facts: ClusterFacts) -> None:
    if transport == BROADCAST and facts.colocated:
        raise ValueError(
            f"learner.transport={BROADCAST} sends from the learner's devices, which the engines share; set "
            f"learner.transport={AUTO}"
        )
    if transport == CUDA_IPC and (facts.gpus != 1 or facts.machines > 1):
        raise ValueError(
            f"learner.transport={CUDA_IPC} needs one rank and one engine on the same GPU; they have "
            f"{facts.gpus or 'no'} GPUs on {facts.machines} machines. Set learner.transport={AUTO}"
        )


def _require_memory(facts: ClusterFacts, *, nbytes: int) -> None:
    """Raise `ValueError` if pushes exceed the main memory of rank 0's machine, or Ray's object store."""
    needed = COPIES * nbytes
    if needed > facts.memory:
        raise ValueError(
            f"learner.transport={SHARED_MEMORY} keeps {needed:,} bytes of weights in main memory, of which "
            f"{facts.memory:,} are available; set learner.wire_dtype=bfloat16, or use a machine with more"
        )
    if facts.machines > 1 and nbytes > facts.object_store:
        raise ValueError(
            f"learner.transport={SHARED_MEMORY}: {nbytes:,} bytes of weights do not fit into Ray's object store of "
            f"{facts.object_store:,} bytes on one of the machines; start Ray there with a larger --object-store-memory and "
            f"/dev/shm, or set learner.wire_dtype=bfloat16"
        )

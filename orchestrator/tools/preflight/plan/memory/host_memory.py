"""Main memory of a run's machines: while the model is read, between steps, and when a checkpoint is made. Memory of pushes."""

from dataclasses import dataclass

from temper.orchestrator.cluster.transport_choice import Choice, Ground, choose
from temper.orchestrator.tools.preflight.plan.memory.engine_memory import EngineMemory
from temper.orchestrator.tools.preflight.plan.memory.layers import FLOAT32
from temper.orchestrator.tools.preflight.plan.memory.rank_memory import RankMemory
from temper.orchestrator.tools.preflight.plan.model import PlannedModel
from temper.rollout.weights.transports import COPIES, CUDA_IPC, SHARED_MEMORY, is_lasting

STORE_SHARE = 0.3
"""Share of main memory that Ray's object store has unless it is told, in /dev/shm where that has as much."""
STORE_MOST = 200_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes of main memory of the machine of rank 0, with as many of the other ranks, and of engines, as lie there."""

    reading: int
    """The model in float32, which each rank reads whole before it is spread; gone afterwards."""
    held: int
    """What is there all the time: on a CPU weights, states and caches, on a GPU what is offloaded or put aside."""
    passes: int
    """What the passes of ranks take on a CPU."""
    push: int
    """The copies of the weights that a push keeps, and Ray's of it."""
    checkpoint: int
    """The copy of a checkpoint that rank 0 writes while training goes on; without room for it the loop waits meanwhile."""

    @property
    def peak(self) -> int:
        """The most at a time that can't be done without: a checkpoint is written piece by piece where there is no room."""
        return max(self.reading, self.held + self.passes + self.push)

    @property
    def saving(self) -> int:
        """What there is while a checkpoint's copy is written beside training."""
        return self.held + self.passes + self.push + self.checkpoint


def host_memory(
    model: PlannedModel,
    rank: RankMemory | None,
    engine: EngineMemory | None,
    *,
    ranks: int,
    engines: int,
    gpu: bool,
    shared: bool,
    push_copies: int,
    push_bytes: int,
) -> HostMemory:
    """Return what a machine needs that has so many ranks and processes of engines."""
    held = ranks * rank.offloaded if rank is not None else 0
    if not gpu:
        held += ranks * rank.states if rank is not None else 0
        held += engines * (engine.weights + engine.cache) if engine is not None else 0
    elif shared and rank is not None and engine is not None:
        held += max(ranks * rank.moved, engines * engine.weights)
    passes = 0 if gpu or rank is None else ranks * (rank.peak - rank.states)
    return HostMemory(
        reading=ranks * FLOAT32 * model.parameters,
        held=held,
        passes=passes,
        push=push_copies * push_bytes,
        checkpoint=model.checkpoint_bytes if rank is not None else 0,
    )


def object_store_bytes(memory: float, shm_bytes: int | None) -> int:
    """Return the room of Ray's object store on a machine."""
    usual = min(STORE_SHARE * memory, STORE_MOST)
    return int(usual if shm_bytes is None else min(usual, shm_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPlan:
    """A push of the whole weights."""

    transport: str
    why: str
    nbytes: int
    sent: int
    """Bytes that travel in a push after the first: those of the adapters, where they travel alone."""
    copies: int
    """Copies of the weights in main memory on the learner's machine: those that take turns, and on several
    machines one in Ray's object store."""
    copies_on_device: int
    """Those that rank 0 keeps on its GPU."""
    lacks: str
    """Why it has no room or does not reach the engines, with the remedy. Empty if it works."""


def push_plan(wanted: str, ground: Ground, *, nbytes: int, adapters: int = 0) -> PushPlan:
    """Return the transport of pushes of `nbytes` if `learner.transport` is `wanted`. `adapters` are the bytes of adapters that
    can travel alone, or 0.
    """
    lacks = ""
    try:
        choice = choose(wanted, ground, nbytes=nbytes)
    except ValueError as error:
        lacks = str(error)
        choice = _anyway(wanted, ground)
    copies = COPIES + (ground.machines > 1) if choice.transport == SHARED_MEMORY else 0
    return PushPlan(
        transport=choice.transport,
        why=choice.why,
        nbytes=nbytes,
        sent=adapters if adapters and is_lasting(choice.transport) else nbytes,
        copies=copies,
        copies_on_device=COPIES if choice.transport == CUDA_IPC else 0,
        lacks=lacks,
    )


def _anyway(wanted: str, ground: Ground) -> Choice:
    """Return the choice with unlimited room, or the wanted transport if that reaches no engine."""
    try:
        return choose(wanted, ground, nbytes=0)
    except ValueError:
        return Choice(transport=wanted, why=f"learner.transport={wanted}")

"""What a weight push travels by, how large it is, and what keeps it meanwhile."""

from dataclasses import dataclass

from temper.orchestrator.cluster.transport_choice import Choice, Ground, choose
from temper.rollout.weights.transports import COPIES, CUDA_IPC, SHARED_MEMORY, is_lasting


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
    """Why it has no room, or does not reach the engines, with what would help; empty where it does."""


def push_plan(wanted: str, ground: Ground, *, nbytes: int, adapters: int = 0) -> PushPlan:
    """Return what pushes of so many bytes travel by where `learner.transport` is `wanted`; `adapters` are the bytes of those
    that could travel without the rest, 0 where there are none.
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
    """Return what it would be with room for anything, or what was asked for where that reaches no engine."""
    try:
        return choose(wanted, ground, nbytes=0)
    except ValueError:
        return Choice(transport=wanted, why=f"learner.transport={wanted}")

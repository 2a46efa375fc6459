"""Memory: what a run takes of it at the least, and room for the weights of a push."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from orchestrator.cluster.transport_choice import Ground, choose
from orchestrator.doctor.finding import Finding, failure, ok, warning
from orchestrator.doctor.gpus import NOT_ASKED
from orchestrator.doctor.subject import Subject
from orchestrator.pipeline.config import Config
from rollout.weights.host_memory import available_bytes
from rollout.weights.manifest import wire_dtype

GIB = 2**30
SHM = Path("/dev/shm")
LEAST_SHM = 2**30
"""What Ray's objects and the processes of an engine want of /dev/shm, as a rule of thumb; a container has 64 MiB."""
STORE_SHARE = 0.3
"""Share of main memory that Ray takes for its objects where /dev/shm has as much."""
TRAINED_BYTES, FROZEN_BYTES = 16, 4
"""Of a parameter in the learner in all: weight, gradient and AdamW's two moments in float32; of a frozen one its weight."""


def look_at_memory(subject: Subject) -> Iterator[Finding]:
    """Compare what there is with the least that a run takes: where that is too much, nothing helps but less."""
    if subject.joins:
        yield ok(NOT_ASKED)
        return
    available, total = available_bytes()
    if subject.config is None:
        yield ok(f"{available / GIB:.1f} of {total / GIB:.1f} GiB of main memory are available")
        return
    gpus = subject.machine.gpus
    if gpus:
        share = subject.config.rollout.engine.gpu_memory_utilization
        yield engine_fits(subject.config, subject.parameters, room=int(share * subject.machine.gpu_gib * GIB))
    yield main_memory_does(least_memory(subject.config, subject.parameters, on_gpus=bool(gpus)), available)


def least_memory(config: Config, parameters: int, *, on_gpus: bool) -> int:
    """Return bytes of main memory that a run of a model takes at the least, without passes and what libraries have."""
    learner, engine = config.learner, config.rollout.engine
    partly = learner.lora.rank > 0 or bool(learner.frozen)
    states = parameters * (FROZEN_BYTES if partly else TRAINED_BYTES)
    if on_gpus:
        return states if learner.offload == "cpu" else parameters * FROZEN_BYTES  # it is read before it is spread
    copies = 1 if learner.zero_stage == 3 else learner.ranks
    engines = config.rollout.workers * (
        parameters * _engine_bytes(engine.dtype) + engine.processes * engine.memory_gib * GIB
    )
    return states + (copies - 1) * parameters * FROZEN_BYTES + engines


def main_memory_does(needed: int, available: int) -> Finding:
    """Say whether so much main memory is available."""
    said = f"the run takes {needed / GIB:.1f} GiB of main memory at the least, {available / GIB:.1f} are available"
    if needed > available:
        return failure(said, "take a smaller model, learner.lora, or fewer rollout.workers or learner.ranks")
    return ok(said)


def engine_fits(config: Config, parameters: int, *, room: int) -> Finding:
    """Say whether an engine's weights fit into what it may take of its GPUs, of which each has so much room."""
    engine = config.rollout.engine
    each = parameters * _engine_bytes(engine.dtype) // engine.processes
    said = f"weights of an engine take {each / GIB:.1f} of the {room / GIB:.1f} GiB that it may take of a GPU"
    if each >= room:
        return failure(said, "raise rollout.engine.gpu_memory_utilization or rollout.engine.tensor_parallel")
    return ok(said)


def _engine_bytes(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def look_at_push(subject: Subject) -> Iterator[Finding]:
    """Look for room for a push of the weights, by what it would travel on this machine."""
    if subject.joins:
        yield ok(NOT_ASKED)
        return
    shm = shutil.disk_usage(SHM).free if SHM.is_dir() else 0
    yield shm_does(shm)
    if subject.config is None or not (subject.wanted.ranks and subject.wanted.engines):
        return
    available, total = available_bytes()
    nodes = subject.wanted
    ground = Ground(
        machines=1,
        gpus=nodes.gpus if subject.machine.gpus else 0,
        shared=nodes.shared,
        memory=available,
        object_store=min(int(STORE_SHARE * total), shm),
    )
    yield push_fits(subject.config, subject.parameters, ground)


def shm_does(free: int) -> Finding:
    """Say whether /dev/shm has so much free as Ray and engines of several processes want."""
    if free < LEAST_SHM:
        return warning(
            f"{SHM} has {free / 2**20:.0f} MiB free; Ray's objects, and engines of several processes, lie there",
            "make it larger (in a container --shm-size=8g)",
        )
    return ok(f"{SHM} has {free / GIB:.1f} GiB free")


def push_fits(config: Config, parameters: int, ground: Ground) -> Finding:
    """Say what a push of so many parameters would travel by; raise `ValueError` where it has no room or reaches nobody."""
    nbytes = parameters * wire_dtype(config.learner.wire_dtype).itemsize
    choice = choose(config.learner.transport, ground, sparse=config.learner.sparse_push, nbytes=nbytes)
    return ok(f"{nbytes / 1e6:,.1f} MB of weights would travel by {choice.transport}: {choice.why}")

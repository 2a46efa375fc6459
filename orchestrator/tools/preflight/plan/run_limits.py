"""The limits of a run as a whole, gathered."""

import math

from temper.orchestrator.cluster.hardware import GIB
from temper.orchestrator.tools.preflight.plan.deadlines import deadline_limits
from temper.orchestrator.tools.preflight.plan.limits import Limit, engine_limits, rank_limit, size
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.seconds.step_time import StepTime
from temper.orchestrator.tools.preflight.plan.split import shared_evenly
from temper.orchestrator.tools.preflight.plan.trials import (
    ENGINE,
    GPUS,
    MEMORY,
    PUSH,
    Knob,
    fewer_engines,
    fewer_ranks,
    mending,
    narrower_engines,
    no_other_is_hit,
    shorter_sequences,
    wider_engines,
)
from temper.rollout.weights.transports import AUTO, COPIES, SHARED_MEMORY

LEAST_SHM = 2**30
"""What Ray's objects and the processes of an engine want of /dev/shm; a container has 64 MiB."""


def run_limits(planner: Planner, time: StepTime | None) -> list[Limit]:
    """Return every limit that is looked at."""
    found = [_processes(planner)] if planner.gpu else []
    found += device_limits(planner)
    if planner.engine is not None:
        found += _positions(planner)
    found.append(main_memory_limit(planner))
    found += push_limits(planner)
    return found + (deadline_limits(planner, time) if time is not None else [])


def device_limits(planner: Planner) -> list[Limit]:
    """Return the limits of what ranks and engines hold on their devices."""
    found: list[Limit] = []
    if planner.rank is not None and planner.gpu:
        found.append(
            rank_limit(
                planner.rank,
                planner.config.learner,
                room=planner.rank_room,
                gpu_gib=planner.site.hardware.gpu_gib,
                most_ranks=_most_ranks(planner),
                longest=planner.longest if planner.plays else 0,
                again=planner.rank_with,
                allowed=lambda learner: no_other_is_hit(planner, {"learner": learner}),
            )
        )
    if planner.engine is not None:
        found += engine_limits(
            planner.engine,
            planner.config.rollout.engine,
            length=planner.longest,
            gpu=planner.gpu,
            remedy=lambda: _engine_remedy(planner),
        )
    return found


def _most_ranks(planner: Planner) -> int:
    """Return how many ranks the GPUs have room for beside the engines, of those that can share every batch."""
    wanted = planner.wanted
    taken = 0 if wanted.shared or planner.halves else wanted.engines * wanted.processes
    free = planner.site.hardware.gpus - taken
    return next((ranks for ranks in range(free, 1, -1) if shared_evenly(planner.config, ranks)), 1)


def _engine_remedy(planner: Planner) -> str:
    engine, config = planner.engine, planner.config.rollout.engine
    assert engine is not None
    one = engine.pages.of_sequence(planner.longest)
    if not planner.gpu:
        cache: Knob = [{"rollout.engine.memory_gib": -(-one // GIB)}]
        machines = f"machines with {math.ceil((planner.host.peak - engine.cache + one) / GIB)} GiB of main memory"
        return mending(planner, ENGINE, [cache, shorter_sequences(planner)]) or machines
    more = [share / 10 for share in range(1, 10) if share / 10 > config.gpu_memory_utilization]
    shares: Knob = [
        {"rollout.engine.gpu_memory_utilization": share} for share in (more if planner.halves else more[-1:])
    ]
    knobs = [shares, list(wider_engines(planner)), shorter_sequences(planner)]
    larger = math.ceil((engine.weights + engine.overhead + one) / config.gpu_memory_utilization / GIB)
    return mending(planner, ENGINE, knobs) or f"GPUs of {larger} GiB"


def _processes(planner: Planner) -> Limit:
    wanted, has = planner.wanted.on(planner.nodes), planner.site.hardware.gpus
    holds, remedy = wanted.fits(planner.nodes), ""
    if not holds:
        config = planner.config
        knobs = [[{"placement": "shared"}], fewer_engines(config), fewer_ranks(config), narrower_engines(config)]
        remedy = mending(planner, GPUS, knobs) or f"{wanted.gpus} GPUs, {wanted.processes} or more of them on a machine"
    return Limit(what="GPUs", needed=f"{wanted.gpus}", has=f"{has}", holds=holds, remedy=remedy)


def _positions(planner: Planner) -> list[Limit]:
    positions = planner.model.shape.positions
    if positions is None:
        return []
    holds = planner.longest <= positions
    remedy = "" if holds else f"rollout.limits.total_tokens={positions} rollout.engine.max_model_len={positions}"
    needed, has = f"{planner.longest:,}", f"{positions:,}"
    return [Limit(what="positions of the model", needed=needed, has=has, holds=holds, remedy=remedy)]


def main_memory_limit(planner: Planner) -> Limit:
    """Return whether a machine's main memory has room for what lies there."""
    peak, room, remedy = planner.host.peak, planner.site.hardware.memory_gib * GIB, ""
    holds = peak <= room
    if not holds:
        larger = f"machines with {math.ceil(peak / GIB)} GiB of main memory"
        remedy = mending(planner, MEMORY, _main_memory_knobs(planner)) or larger
    return Limit(what="main memory of a machine", needed=size(peak), has=size(room), holds=holds, remedy=remedy)


def _main_memory_knobs(planner: Planner) -> list[Knob]:
    """Return what takes less main memory, that by which least is lost first."""
    config, learner = planner.config, planner.config.learner
    passes = range(learner.micro_batch_tokens // 2, planner.longest - 1, -planner.longest)
    return [
        [{"learner.wire_dtype": "bfloat16"}] if planner.push.copies and learner.wire_dtype == "float32" else [],
        _smaller_caches(planner) if planner.plays and not planner.gpu else [],
        [{"learner.micro_batch_tokens": tokens} for tokens in passes] if not planner.gpu else [],
        fewer_engines(config) if planner.plays else [],
        [{"learner.offload": "none"}] if learner.offload == "cpu" else [],
        fewer_ranks(config) if planner.trains else [],
    ]


def _smaller_caches(planner: Planner) -> Knob:
    """Return how the caches of engines on CPUs are made smaller, down to 1 GiB: none is tried that is too large anyway."""
    now, processes = planner.config.rollout.engine.memory_gib, planner.wanted.engines * planner.wanted.processes
    over = planner.host.peak - planner.site.hardware.memory_gib * GIB
    most = max(1, now - math.ceil(over / GIB / processes))
    return [{"rollout.engine.memory_gib": gib} for gib in range(min(most, now - 1), 0, -1)]


def push_limits(planner: Planner) -> list[Limit]:
    """Return whether pushes reach the engines and find room; nothing for a run without any."""
    return [_way_of_pushes(planner)] if planner.trains and planner.plays else []


def _way_of_pushes(planner: Planner) -> Limit:
    push = planner.push
    what = f"a push by {push.transport}"
    if not push.lacks:
        kept = f"{size(push.copies * push.nbytes)} of the weights in main memory" if push.copies else ""
        return Limit(what=what, needed=kept or "no copy of the weights", has="", holds=True)
    why, _, said = push.lacks.partition("; ")
    ways: list[Knob] = [[{"learner.transport": AUTO}], [{"learner.wire_dtype": "bfloat16"}]]
    room = _room_for_pushes(planner)
    remedy = ", or ".join(text for text in (mending(planner, PUSH, ways), room) if text) or said
    return Limit(what=what, needed=why, has="", holds=False, remedy=remedy)


def _room_for_pushes(planner: Planner) -> str:
    """Return what machines a push by the way that was chosen would have room on; "" where it finds no engine on any."""
    push = planner.push
    if push.transport != SHARED_MEMORY:
        return ""
    if "object-store" in push.lacks:
        shm = math.ceil(push.nbytes / GIB)
        return f"ray start --object-store-memory={push.nbytes} on machines with {shm} GiB of /dev/shm"
    return f"machines with {math.ceil(COPIES * push.nbytes / GIB)} GiB of main memory"


def advised(planner: Planner) -> list[Limit]:
    """Return what a run may do with less of; nothing of /dev/shm where its size is not known."""
    return [] if planner.site.shm_bytes is None else [shm_limit(planner.site.shm_bytes)]


def shm_limit(room: float) -> Limit:
    """Return whether /dev/shm has as much as Ray and engines of several processes want, as a rule of thumb."""
    holds = room >= LEAST_SHM
    remedy = "" if holds else "make it larger (in a container --shm-size=8g)"
    what = "/dev/shm for Ray's objects and engines of several processes"
    return Limit(what=what, needed=size(LEAST_SHM), has=size(room), holds=holds, remedy=remedy)

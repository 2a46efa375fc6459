"""The limits of a run as a whole, gathered."""

import math

from orchestrator.cluster.hardware import GIB
from orchestrator.cluster.placement import lacking
from orchestrator.planning.limits import Limit, engine_limits, rank_limit, size
from orchestrator.planning.planner import Planner
from orchestrator.planning.seconds.step_time import StepTime
from orchestrator.planning.split import shared_evenly
from rollout.weights.transports.catalog import AUTO

MARGIN = 1.5
"""A deadline has to be this many times what a wait is planned to take."""


def run_limits(planner: Planner, time: StepTime | None) -> list[Limit]:
    """Return every limit that is looked at."""
    found = [_processes(planner)] if planner.gpu else []
    found += device_limits(planner)
    if planner.engine is not None:
        found += _positions(planner)
    found.append(main_memory_limit(planner))
    found += push_limits(planner)
    return found + (_deadlines(planner, time) if time is not None else [])


def device_limits(planner: Planner) -> list[Limit]:
    """Return the limits of what ranks and engines hold on their devices."""
    found: list[Limit] = []
    if planner.rank is not None and planner.gpu:
        found.append(
            rank_limit(
                planner.rank,
                planner.config.learner,
                room=planner.rank_room,
                most_ranks=_most_ranks(planner),
                longest=planner.longest if planner.plays else 0,
                again=planner.rank_with,
            )
        )
    if planner.engine is not None:
        found += engine_limits(
            planner.engine,
            planner.config.rollout.engine,
            length=planner.longest,
            gpu=planner.gpu,
            again=planner.engine_with,
            most_processes=planner.site.hardware.gpus_together,
        )
    return found


def _most_ranks(planner: Planner) -> int:
    """Return how many ranks the GPUs have room for beside the engines, of those that can share every batch."""
    wanted = planner.wanted
    taken = 0 if wanted.shared or planner.halves else wanted.engines * wanted.processes
    free = planner.site.hardware.gpus - taken
    return next((ranks for ranks in range(free, 1, -1) if shared_evenly(planner.config, ranks)), 1)


def _processes(planner: Planner) -> Limit:
    wanted = planner.wanted.on(planner.nodes)
    holds = wanted.fits(planner.nodes)
    remedy = "" if holds else lacking(wanted, planner.nodes).rpartition("; ")[2]
    return Limit(what="GPUs", needed=f"{wanted.gpus}", has=f"{planner.site.hardware.gpus}", holds=holds, remedy=remedy)


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
    host, room, remedy = planner.host, planner.site.hardware.memory_gib * GIB, ""
    holds = host.peak <= room
    if not holds and host.reading >= host.peak:
        fitting = max(1, int(room // max(1, 4 * planner.model.parameters)))
        remedy = f"learner.ranks={fitting} a machine, or machines with more: each rank reads the model in float32"
    elif not holds:
        remedy = "learner.wire_dtype=bfloat16, learner.offload=none, or machines with more"
    return Limit(what="main memory of a machine", needed=size(host.peak), has=size(room), holds=holds, remedy=remedy)


def push_limits(planner: Planner) -> list[Limit]:
    """Return whether pushes reach the engines and find room; nothing for a run without any."""
    return [_way_of_pushes(planner)] if planner.trains and planner.plays else []


def _way_of_pushes(planner: Planner) -> Limit:
    push = planner.push
    copies = (
        f"{size(push.copies * push.nbytes)} of the weights in main memory" if push.copies else "no copy of the weights"
    )
    if not push.lacks:
        return Limit(what=f"a push by {push.transport}", needed=copies, has="", holds=True)
    why, _, remedy = push.lacks.partition("; ")
    by_choice = "" if planner.config.learner.transport == AUTO else f", or learner.transport={AUTO}"
    return Limit(what=f"a push by {push.transport}", needed=why, has="", holds=False, remedy=f"{remedy}{by_choice}")


def _deadlines(planner: Planner, time: StepTime) -> list[Limit]:
    """Return whether the waits of a step end before their deadlines do, with some to spare."""
    loop = next(one for one in planner.config.instances if one.name == time.work.stage)
    waits = {
        f"{loop.name}.timeout_s": (max(time.longest_s, time.learn_s), planner.config.settings(loop).timeout_s),
        "rollout.engine.push_timeout_s": (
            time.load_s,
            planner.config.rollout.engine.push_deadline_s(planner.push.nbytes),
        ),
    }
    if planner.trains:
        nbytes = planner.model.checkpoint_bytes
        written = nbytes / (planner.assumptions.disk_gbs * 1e9)
        waits["deadlines.files_s"] = (written, planner.config.deadlines.files(nbytes).seconds)
    return [_deadline(setting, wait, limit) for setting, (wait, limit) in waits.items()]


def _deadline(setting: str, wait: float, limit: float) -> Limit:
    wanted = MARGIN * wait
    holds, what = wanted <= limit, f"{setting}, {MARGIN:g} times the wait"
    remedy = "" if holds else f"{setting}={math.ceil(wanted)}"
    return Limit(what=what, needed=f"{wanted:,.1f} s", has=f"{limit:,.0f} s", holds=holds, remedy=remedy)

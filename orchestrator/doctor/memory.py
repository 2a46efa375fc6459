"""Memory: what the plan of a run takes of it on this machine, and room for the weights of a push."""

import shutil
from collections.abc import Iterator

from orchestrator.doctor.finding import Finding, failure, ok, warning
from orchestrator.doctor.gpus import NOT_ASKED
from orchestrator.doctor.subject import Subject
from orchestrator.planning.limits import Limit, size
from orchestrator.planning.plan import SHM
from orchestrator.planning.planner import Planner
from orchestrator.planning.run_limits import run_limits
from rollout.weights.host_memory import available_bytes

LEAST_SHM = 2**30
"""What Ray's objects and the processes of an engine want of /dev/shm, as a rule of thumb; a container has 64 MiB."""
PUSH = "a push"
"""What the limits of pushes begin with."""
ELSEWHERE = ("GPUs", "positions of the model")
"""Limits that other checks look at."""


def look_at_memory(subject: Subject) -> Iterator[Finding]:
    """Hold what a run is planned to take against what this machine has."""
    if subject.joins:
        yield ok(NOT_ASKED)
        return
    available, total = available_bytes()
    if subject.config is None:
        yield ok(f"{size(available)} of {size(total)} of main memory are available")
        return
    found = list(limits_met(subject.planner, pushes=False))
    yield from found
    if not any(one.remedy for one in found):
        yield available_does(subject.planner.host.peak, available)


def look_at_push(subject: Subject) -> Iterator[Finding]:
    """Look for room for a push of the weights, by what it would travel on this machine."""
    if subject.joins:
        yield ok(NOT_ASKED)
        return
    yield shm_does(shutil.disk_usage(SHM).free if SHM.is_dir() else 0)
    if subject.config is not None:
        yield from limits_met(subject.planner, pushes=True)


def limits_met(planner: Planner, *, pushes: bool) -> Iterator[Finding]:
    """Tell whether a run as planned keeps each limit of memory, or of pushes."""
    for limit in run_limits(planner, None):
        if limit.what.startswith(PUSH) == pushes and limit.what not in ELSEWHERE:
            yield keeps(limit)


def keeps(limit: Limit) -> Finding:
    """Tell whether a limit is kept."""
    said = f"{limit.what}: needs {limit.needed}" + (f", there are {limit.has}" if limit.has else "")
    return ok(said) if limit.holds else failure(said, limit.remedy or "temper plan says what takes it")


def available_does(needed: int, available: int) -> Finding:
    """Say whether as much main memory as a run needs is free now."""
    if needed > available:
        return warning(
            f"the run needs {size(needed)} of main memory, and {size(available)} are available now", "end what uses it"
        )
    return ok(f"{size(available)} of main memory are available now")


def shm_does(free: int) -> Finding:
    """Say whether /dev/shm has so much free as Ray and engines of several processes want."""
    if free < LEAST_SHM:
        return warning(
            f"{SHM} has {size(free)} free; Ray's objects, and engines of several processes, lie there",
            "make it larger (in a container --shm-size=8g)",
        )
    return ok(f"{SHM} has {size(free)} free")

"""Memory, pushes and disk: the plan of a run against this machine, and space for checkpoints."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from temper.orchestrator.cluster.machines import SHM, Hardware
from temper.orchestrator.pipeline.estimate.limits import Limit, memory_limits, push_limits, shm_limit, size
from temper.orchestrator.pipeline.estimate.run_plan import Plan
from temper.orchestrator.pipeline.finding import Finding, failure, ok, warning
from temper.orchestrator.pipeline.start_checks import require_disk
from temper.orchestrator.run.checkpoint import size_of
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.preflight.doctor.nodes import check_temporary_disk
from temper.orchestrator.tools.preflight.doctor.target import CheckTarget
from temper.rollout.weights.host_memory import available_bytes

MARGIN = 0.15
"""Share of a GPU by which a plan may exceed it. Activations and overheads are estimates."""
GB = 1e9


def inspect_memory(target: CheckTarget) -> Iterator[Finding]:
    """Compare a run's planned memory with this machine's."""
    available, total = available_bytes()
    if target.requested is None:
        yield ok(f"{size(available)} of {size(total)} of main memory are available")
        return
    found = list(check_memory(target.plan))
    yield from found
    if not any(one.remedy for one in found):
        yield check_available(target.plan.host.peak, available)


def inspect_push(target: CheckTarget) -> Iterator[Finding]:
    """Check the space for a weight push by its transport on this machine."""
    yield check_shm(shutil.disk_usage(SHM).free if SHM.is_dir() else 0)
    if target.requested is not None:
        yield from map(check_limit, push_limits(target.plan))


def check_memory(plan: Plan) -> Iterator[Finding]:
    """Check each memory limit. A limit that would hold on slightly larger GPUs is a warning."""
    machines = [replace(one, gpu_gib=(1 + MARGIN) * one.gpu_gib) for one in plan.site.hardware.machines]
    larger = replace(plan.site, hardware=Hardware(machines=tuple(machines)))
    over = {one.what for one in memory_limits(Plan(plan.config, plan.model, larger, plan.assumptions)) if not one.holds}
    for limit in memory_limits(plan):
        yield check_limit(limit, within=limit.what not in over)


def check_limit(limit: Limit, *, within: bool = False) -> Finding:
    """Check a limit. If it fails `within` the margin, it is a warning."""
    message = f"{limit.what}: needs {limit.needed}" + (f", available {limit.has}" if limit.has else "")
    if limit.holds:
        return ok(message)
    if within:
        return warning(f"{message}; less than {MARGIN:.0%} of a GPU over, and this is an estimate", limit.remedy)
    return failure(message, limit.remedy)


def check_available(needed: int, available: int) -> Finding:
    """Check whether a run's main memory is free now."""
    if needed > available:
        return warning(
            f"the run needs {size(needed)} of main memory, and {size(available)} are available now",
            "end the processes that use it",
        )
    return ok(f"{size(available)} of main memory are available now")


def check_shm(free: int) -> Finding:
    """Check whether /dev/shm has the free bytes that a plan advises."""
    limit = shm_limit(free)
    if not limit.holds:
        return warning(f"{SHM} has {limit.has} free, less than the {limit.needed} that are advised", limit.remedy)
    return ok(f"{SHM} has {limit.has} free")


def inspect_disk_space(target: CheckTarget) -> Iterator[Finding]:
    """Compare the free disk with the size of checkpoints."""
    folder, free = target.folder, shutil.disk_usage(target.folder).free
    if not target.joins:
        temporary = shutil.disk_usage(tempfile.gettempdir())
        share = temporary.free / temporary.total
        yield from check_temporary_disk(
            f"{tempfile.gettempdir()} for temporary files", free=temporary.free, share=share
        )
    if target.requested is None:
        yield ok(f"{folder} has {free / GB:.1f} GB free")
        return
    config, run = target.config, RunDir(Path(target.config.runs_dir) / target.config.name)
    there = [size_of(run.checkpoints(one.name)) for one in config.instances if one.stage.trains]
    if not there:
        yield ok(f"{folder} has {free / GB:.1f} GB free, and no stage writes checkpoints")
        return
    size = target.plan.model.checkpoint_bytes
    require_disk(folder, size, target.start.parameters)
    yield check_disk_space(folder, free=free, size=size, keep=config.checkpoints.keep, there=there)


def check_disk_space(folder: Path, *, free: int, size: int, keep: int, there: list[int]) -> Finding:
    """Check whether a folder has space for all kept checkpoints and one in progress.

    `there` has the bytes of existing checkpoints by stage. Each stage keeps `keep` checkpoints of `size` bytes.
    """
    needed = size + sum(max(0, keep * size - nbytes) for nbytes in there)
    more = " more" if any(there) else ""
    kept = f"{keep * len(there) + 1} checkpoints of {size / GB:.3g} GB take {needed / GB:.3g}{more}"
    message = f"{folder} has {free / GB:.1f} GB free, {kept}"
    if needed > free:
        return warning(message, "lower checkpoints.keep, free some space, or set runs_dir= on a larger disk")
    return ok(message)

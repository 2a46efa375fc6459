"""GPUs: whether the driver runs torch's CUDA, kernels that recurrent layers need, and devices for all processes."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from temper.learner.models.kernels import Device, require_kernels
from temper.orchestrator.cluster.hardware import QUERY_S, select_visible
from temper.orchestrator.cluster.machines import Hardware
from temper.orchestrator.cluster.placement import Node, PlacementRequest, describe_shortage
from temper.orchestrator.pipeline.finding import Finding, failure, ok, warning
from temper.orchestrator.pipeline.prepare import wanted_processes
from temper.orchestrator.tools.preflight.doctor.check import SKIPPED
from temper.orchestrator.tools.preflight.doctor.target import CheckTarget

DRIVERS = {13: 580, 12: 525}
"""By the major version of CUDA the first driver that runs it (NVIDIA, CUDA Toolkit Release Notes)."""
ASK_DRIVER = ("nvidia-smi", "--query-gpu=driver_version,memory.used", "--format=csv,noheader,nounits")
IN_USE_MIB = 2048
"""Memory in use on a GPU above which it is a warning."""


def inspect_driver(target: CheckTarget) -> Iterator[Finding]:
    """Compare the driver with torch's CUDA, and report GPUs in use."""
    drivers = _ask_driver()
    yield check_driver(drivers[0][0] if drivers else None, cuda=torch.version.cuda, gpus=target.hardware.gpus)
    if torch.version.cuda is not None:
        yield from gpus_in_use(drivers, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _ask_driver() -> list[tuple[str, int]]:
    """Return the driver's version and the used MiB by GPU. Empty if nvidia-smi is missing or finds no GPU."""
    if shutil.which(ASK_DRIVER[0]) is None:
        return []
    drivers = subprocess.run(ASK_DRIVER, capture_output=True, text=True, timeout=QUERY_S, check=False)
    return read_driver(drivers.stdout) if drivers.returncode == 0 else []


def read_driver(drivers: str) -> list[tuple[str, int]]:
    """Parse the output of nvidia-smi. Unknown memory (`[N/A]`) counts as free."""
    rows = [line.split(", ") for line in drivers.splitlines()]
    return [(version, int(used) if used.isdecimal() else 0) for version, used in rows]


def gpus_in_use(drivers: list[tuple[str, int]], chosen: str | None) -> Iterator[Finding]:
    """Warn if memory of a GPU is in use. `chosen` has the GPUs of CUDA_VISIBLE_DEVICES, None means all."""
    ours = select_visible(list(enumerate(drivers)), chosen)
    used = [f"GPU {number} has {mib} MiB in use" for number, (_, mib) in ours if mib > IN_USE_MIB]
    if used:
        yield warning(", ".join(used), "end the processes that use them, or exclude them with CUDA_VISIBLE_DEVICES")


def check_driver(driver: str | None, *, cuda: str | None, gpus: int) -> Finding:
    """Check whether a driver supports torch's CUDA. None is a CPU build. `gpus` are the GPUs that torch may use."""
    if cuda is None:
        if driver is None:
            return ok("torch's build for CPUs, and no GPU")
        return warning(f"there is a GPU (driver {driver}), but torch is a CPU build", "make setup STACK=gpu")
    if driver is None and gpus:
        return ok(f"torch of CUDA {cuda} finds {gpus} GPUs, without nvidia-smi")
    if driver is None:
        return failure(
            f"torch is built with CUDA {cuda}, and no driver answers",
            "install NVIDIA's driver, or make setup STACK=cpu",
        )
    needed = DRIVERS.get(int(cuda.partition(".")[0]), 0)
    if int(driver.partition(".")[0]) < needed:
        return failure(
            f"driver {driver} is older than {needed}, which torch of CUDA {cuda} needs",
            f"install driver {needed} or later",
        )
    if not gpus:
        return failure(
            f"driver {driver} answers, but torch of CUDA {cuda} may use no GPU",
            "check CUDA_VISIBLE_DEVICES, and --gpus of a container",
        )
    return ok(f"driver {driver} runs torch's CUDA {cuda}")


def inspect_kernels(target: CheckTarget) -> Iterator[Finding]:
    if target.joins:
        yield ok(SKIPPED)
    elif not target.hardware.gpus:
        yield ok("no GPU, so no extra kernels are needed")
    else:
        check_kernels(target.model_config, device="cuda")
        yield ok("the kernels of the model's recurrent layers, if it has any, are installed")


def check_kernels(config: PretrainedConfig, *, device: Device) -> None:
    """Raise `ValueError` if a GPU would compute recurrent layers without kernels. No weights are created."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    require_kernels(model, device=device)


def inspect_devices(target: CheckTarget) -> Iterator[Finding]:
    """Compare the processes of a run with this machine."""
    if target.requested is None:
        yield ok(target.hardware.describe())
    else:
        yield check_devices(wanted_processes(target.requested, target.requested.instances), target.hardware)


def check_devices(wanted: PlacementRequest, hardware: Hardware) -> Finding:
    """Check whether one machine has all devices of a run."""
    nodes = [Node(name="", address="this machine", gpus=hardware.gpus, free=hardware.gpus)]
    on_this, has = wanted.resolve_for(nodes), hardware.describe()
    if not on_this.fits(nodes):
        what, _, remedy = describe_shortage(on_this, nodes).rpartition("; ")
        return failure(what, remedy)
    if hardware.gpus:
        return ok(f"{has}; the run needs {on_this}" if on_this else f"{has}; the run places nothing")
    engines = on_this.engines * on_this.processes
    if on_this.ranks + engines > 2 * hardware.cpus:
        return warning(
            f"{has} for {on_this.ranks + engines} processes of the run",
            "lower learner.ranks or rollout.workers",
        )
    return ok(f"{has}; processes of ranks: {on_this.ranks}, of engines: {engines}")

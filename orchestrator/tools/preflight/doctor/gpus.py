"""GPUs: whether the driver runs what torch was built with, kernels that recurrent layers need, and room for all processes."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from temper.learner.models.kernels import Device, require_kernels
from temper.orchestrator.cluster.hardware import ASK_S, Hardware, Machine, chosen_of
from temper.orchestrator.cluster.placement import Node, Wanted, lacking
from temper.orchestrator.pipeline.finding import Finding, failure, ok, warning
from temper.orchestrator.tools.preflight.doctor.subject import Subject

DRIVERS = {13: 580, 12: 525}
"""By the major version of CUDA the first driver that runs it (NVIDIA, CUDA Toolkit Release Notes)."""
ASK_DRIVER = ("nvidia-smi", "--query-gpu=driver_version,memory.used", "--format=csv,noheader,nounits")
NOT_ASKED = "the cluster that RAY_ADDRESS names is not asked"
IN_USE_MIB = 2048
"""Memory of a GPU that somebody else must have before it is worth a word."""


def look_at_driver(subject: Subject) -> Iterator[Finding]:
    """Compare the driver with torch's CUDA, and tell of GPUs that are in use."""
    if subject.joins:
        yield ok(NOT_ASKED)
        return
    told = ask_driver()
    yield check_driver(told[0][0] if told else None, cuda=torch.version.cuda, gpus=subject.machine.gpus)
    if torch.version.cuda is not None:
        yield from gpus_in_use(told, os.environ.get("CUDA_VISIBLE_DEVICES"))


def ask_driver() -> list[tuple[str, int]]:
    """Return the driver's version and the MiB in use, by GPU; nothing where nvidia-smi is not there or knows of none."""
    if shutil.which(ASK_DRIVER[0]) is None:
        return []
    told = subprocess.run(ASK_DRIVER, capture_output=True, text=True, timeout=ASK_S, check=False)
    return read_driver(told.stdout) if told.returncode == 0 else []


def read_driver(told: str) -> list[tuple[str, int]]:
    """Return the same of what nvidia-smi told; memory that it can't tell of (`[N/A]`) counts as free."""
    rows = [line.split(", ") for line in told.splitlines()]
    return [(version, int(used) if used.isdecimal() else 0) for version, used in rows]


def gpus_in_use(told: list[tuple[str, int]], chosen: str | None) -> Iterator[Finding]:
    """Warn where somebody else has memory of a GPU that CUDA_VISIBLE_DEVICES has `chosen`, of any where it is None."""
    ours = chosen_of(list(enumerate(told)), chosen)
    used = [f"GPU {number} has {mib} MiB in use" for number, (_, mib) in ours if mib > IN_USE_MIB]
    if used:
        yield warning(", ".join(used), "end what uses them, or leave them out by CUDA_VISIBLE_DEVICES")


def check_driver(driver: str | None, *, cuda: str | None, gpus: int) -> Finding:
    """Say whether a driver runs torch's CUDA, None being a build for CPUs; `gpus` are those that torch may use."""
    if cuda is None:
        if driver is None:
            return ok("torch's build for CPUs, and no GPU")
        return warning(f"there is a GPU (driver {driver}), but torch is a build for CPUs", "make setup STACK=gpu")
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
            "look at CUDA_VISIBLE_DEVICES, and in a container at its --gpus",
        )
    return ok(f"driver {driver} runs torch's CUDA {cuda}")


def look_at_kernels(subject: Subject) -> Iterator[Finding]:
    """Look for the kernels of a model with recurrent layers."""
    if not subject.shape.state_bytes:
        yield ok("the model has no Mamba layers, which alone need kernels of their own")
    elif subject.joins:
        yield ok(NOT_ASKED)
    elif not subject.machine.gpus:
        yield ok("the model has Mamba layers; CPUs need no kernels of their own for them")
    else:
        check_kernels(subject.model_config, device="cuda")
        yield ok("those of the model's Mamba layers are there")


def check_kernels(config: PretrainedConfig, *, device: Device) -> None:
    """Raise `ValueError` where a model's recurrent layers would be computed on a GPU by a reference. No weights are made."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    require_kernels(model, device=device)


def look_at_devices(subject: Subject) -> Iterator[Finding]:
    """Compare what a run places with what this machine has."""
    if subject.joins:
        yield ok(NOT_ASKED)
    elif subject.given is None:
        yield ok(Hardware(machines=(subject.machine,)).in_words())
    else:
        yield check_devices(subject.wanted, subject.machine)


def check_devices(wanted: Wanted, machine: Machine) -> Finding:
    """Say whether one machine has what a run places."""
    nodes = [Node(name="", address="this machine", gpus=machine.gpus, free=machine.gpus)]
    placed, has = wanted.on(nodes), Hardware(machines=(machine,)).in_words()
    if not placed.fits(nodes):
        what, _, remedy = lacking(placed, nodes).rpartition("; ")
        return failure(what, remedy)
    if machine.gpus:
        return ok(f"{has}; the run wants {placed}" if placed else f"{has}; the run places nothing")
    processes = placed.ranks + placed.engines * placed.processes
    if processes > 2 * machine.cpus:
        return warning(
            f"{has} for {processes} processes of the run",
            "lower learner.ranks or rollout.workers, which then wait for each other less",
        )
    return ok(f"{has}; processes of ranks: {placed.ranks}, of engines: {placed.engines * placed.processes}")

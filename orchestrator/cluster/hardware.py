"""The hardware of a cluster's machines: GPUs with their memory, main memory, CPU cores."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from temper.orchestrator.cluster.machines import GIB, Hardware, Machine
from temper.orchestrator.cluster.ray_cluster import start_ray, stop_ray
from temper.rollout.weights.host_memory import GROUPS, available_bytes

QUERY_S = 60.0
"""Timeout of nvidia-smi."""
MACHINES_S = 240.0
"""Timeout for the machines of a cluster. Each starts a process that imports torch, over a minute on a busy machine."""
SMI = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
"""Prints the memory of each GPU in MiB."""
T = TypeVar("T")
TORCH = """
import torch
for number in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(number).total_memory >> 20)
"""
"""Prints the memory of each visible GPU in MiB."""


def query_hardware() -> Hardware:
    """Return the hardware of the cluster of RAY_ADDRESS, or of this machine if it is not set.

    Raise `TimeoutError` if a machine does not answer.
    """
    if "RAY_ADDRESS" not in os.environ:
        return Hardware(machines=(this_machine(),))
    with join_cluster():
        nodes = [node for node in ray.nodes() if node["Alive"]]
        calls = [_query(node["NodeID"]) for node in nodes]
        done, late = ray.wait(calls, num_returns=len(calls), timeout=MACHINES_S)
        if late:
            raise TimeoutError(
                f"{len(late)} of {len(nodes)} machines of the cluster did not answer within {MACHINES_S:.0f} s; "
                "check `ray status`"
            )
        found: list[Machine] = ray.get(done)
        counts = {calls[at]: int(node["Resources"].get("GPU", 0)) for at, node in enumerate(nodes)}
    return Hardware(machines=tuple(limit_gpus(one, counts[call]) for one, call in zip(found, done, strict=True)))


def _query(node: str) -> "ray.ObjectRef[Machine]":
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    asked: ray.ObjectRef[Machine] = ray.remote(num_cpus=0, scheduling_strategy=there)(this_machine).remote()
    return asked


@contextlib.contextmanager
def join_cluster() -> Iterator[None]:
    """Join the cluster for the block. Leave it afterwards unless it was joined before."""
    before = ray.is_initialized()
    start_ray(slots=1, min_sandbox_level=0)
    try:
        yield
    finally:
        if not before:
            stop_ray()


def limit_gpus(machine: Machine, count: int) -> Machine:
    """Return a machine with the GPUs that Ray may use, none if its torch can't use them."""
    return replace(machine, gpus=count if machine.gpu_gib else 0)


def this_machine() -> Machine:
    sizes = _gpu_sizes()
    return Machine(
        gpus=len(sizes), gpu_gib=min(sizes, default=0.0), memory_gib=available_bytes()[1] / GIB, cpus=_cores()
    )


def _gpu_sizes() -> list[float]:
    """Return the memory in GiB of each visible GPU, none if torch is a CPU build.

    Without nvidia-smi a subprocess asks torch, because torch keeps GPU memory until its process ends.
    """
    if torch.version.cuda is None:
        return []
    if shutil.which(SMI[0]) is not None:
        output = subprocess.run(SMI, capture_output=True, text=True, timeout=QUERY_S, check=False)
        if output.returncode == 0:
            return parse_gpu_sizes(output.stdout, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return query_torch()


def query_torch() -> list[float]:
    """Return the memory in GiB of each visible GPU. Raise `RuntimeError` with torch's error."""
    command = (sys.executable, "-P", "-c", TORCH)
    output = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_S, check=False)
    if output.returncode:
        raise RuntimeError(f"neither torch nor nvidia-smi reports GPU memory: {output.stderr}")
    return parse_gpu_sizes(output.stdout, None)


def parse_gpu_sizes(output: str, visible_devices: str | None) -> list[float]:
    """Return the sizes in GiB of the visible GPUs from lines of MiB. None as `visible_devices` selects all."""
    return select_visible([int(line) / 1024 for line in output.split()], visible_devices)


def select_visible(gpus: list[T], visible_devices: str | None) -> list[T]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects; all if it is not set (None)."""
    if visible_devices is None:
        return gpus
    names = [name.strip() for name in visible_devices.split(",") if name.strip() not in ("", "-1")]
    known = [gpus[int(name)] for name in names if name.isdecimal() and int(name) < len(gpus)]
    return known if len(known) == len(names) else gpus[: len(names)]  # names such as GPU-8932f937 have no index


def _cores() -> int:
    cores = len(os.sched_getaffinity(0))
    file = GROUPS / "cpu.max"
    words = file.read_text(encoding="ascii").split() if file.is_file() else []
    return max(1, min(cores, int(words[0]) // int(words[1]))) if len(words) == 2 and words[0].isdecimal() else cores

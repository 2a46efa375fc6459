"""The hardware of this machine: GPUs with their memory, main memory, CPU cores. It imports neither torch nor Ray."""

import os
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from temper.orchestrator.cluster.machines import GIB, Machine
from temper.rollout.weights.host_memory import GROUPS, available_bytes

QUERY_S = 60.0
"""Timeout of nvidia-smi."""
SMI = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
"""Prints the memory of each GPU in MiB."""
T = TypeVar("T")
TORCH = """
import torch
for number in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(number).total_memory >> 20)
"""
"""Prints the memory of each visible GPU in MiB."""


def this_machine() -> Machine:
    sizes = _gpu_sizes()
    return Machine(
        gpus=len(sizes), gpu_gib=min(sizes, default=0.0), memory_gib=available_bytes()[1] / GIB, cpus=_cores()
    )


def _gpu_sizes() -> list[float]:
    """Return the memory in GiB of each visible GPU, none if torch is a CPU build.

    Without nvidia-smi a subprocess asks torch, because torch keeps GPU memory until its process ends.
    """
    if _torch_cuda() is None:
        return []
    if shutil.which(SMI[0]) is not None:
        output = subprocess.run(SMI, capture_output=True, text=True, timeout=QUERY_S, check=False)
        if output.returncode == 0:
            return parse_gpu_sizes(output.stdout, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return query_torch()


def _torch_cuda() -> str | None:
    """Return the CUDA version of the installed torch, whose import takes seconds. None for a CPU build."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    version: str | None = runpy.run_path(str(Path(spec.origin).with_name("version.py")))["cuda"]
    return version


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

"""The machine that is checked: its GPU in words, its peak, and clocks that wait for what was asked of it."""

import os
import platform
import time
from collections.abc import Callable

import torch

PEAKS = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""Dense bfloat16 operations a second by the name of a GPU, from their makers' data sheets."""


def device() -> torch.device:
    """Return the GPU, or the CPU where there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def on_gpu() -> bool:
    """Return whether this is a machine with a GPU that torch can use."""
    return torch.cuda.is_available()


def words() -> str:
    """Return the machine for people."""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    if not on_gpu():
        return f"{len(os.sched_getaffinity(0))} CPU cores, no GPU, {versions}"
    found = torch.cuda.get_device_properties(0)
    many = f"{torch.cuda.device_count()} x " if torch.cuda.device_count() > 1 else ""
    return f"{many}{found.name}, {found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}, {versions}"


def peak_flops() -> float | None:
    """Return the GPU's peak in bfloat16 operations a second; None where it is not known."""
    name = torch.cuda.get_device_name(0) if on_gpu() else ""
    return next((peak for word, peak in PEAKS.items() if word in name), None)


def seconds(work: Callable[[], object], *, repeats: int) -> float:
    """Return the best of `repeats` times that work takes, after one that allocates."""
    work()
    best = float("inf")
    for _ in range(repeats):
        _wait()
        began = time.perf_counter()
        work()
        _wait()
        best = min(best, time.perf_counter() - began)
    return best


def peak_gib(work: Callable[[], object]) -> float:
    """Return the most memory of the GPU that torch holds during work, in GiB; 0 without a GPU."""
    if not on_gpu():
        work()
        return 0.0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    work()
    return torch.cuda.max_memory_allocated() / 2**30


def _wait() -> None:
    if on_gpu():
        torch.cuda.synchronize()

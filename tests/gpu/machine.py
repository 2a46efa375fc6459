"""The machine under test, timers that wait for its GPU, and the models of the check."""

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from support.fresh_qwen3 import fresh_qwen3

from temper.learner.models.config import FreshModelConfig
from temper.learner.models.fresh import make_model

PEAKS = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""Dense bfloat16 operations a second by the name of a GPU, from their makers' data sheets."""

SMALL = FreshModelConfig()
MIDDLE = FreshModelConfig(
    pattern="M-M-M*-M-M-M*-",
    hidden_size=1024,
    intermediate_size=4096,
    attention_heads=16,
    key_value_heads=8,
    mamba_heads=64,
    state_size=128,
    initializer_range=0.02,
    max_positions=8192,
    chunk_size=256,
)
LARGE = FreshModelConfig(
    pattern="M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-",
    hidden_size=2048,
    intermediate_size=8192,
    attention_heads=16,
    key_value_heads=8,
    mamba_heads=128,
    state_size=128,
    initializer_range=0.02,
    max_positions=8192,
    chunk_size=256,
)
"""1 B parameters: 16 Mamba-2 layers, 4 of attention, 20 MLPs."""
EXPERTS = replace(MIDDLE, pattern="M*EM*E", experts=16, experts_per_token=4, expert_size=512)
"""A hybrid with expert layers."""


def device() -> torch.device:
    """Return the GPU, or the CPU if there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def on_gpu() -> bool:
    """Return whether this is a machine with a GPU that torch can use."""
    return torch.cuda.is_available()


def machine_words() -> str:
    """Describe the machine for people."""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    if not on_gpu():
        return f"{len(os.sched_getaffinity(0))} CPU cores, no GPU, {versions}"
    found = torch.cuda.get_device_properties(0)
    many = f"{torch.cuda.device_count()} x " if torch.cuda.device_count() > 1 else ""
    return f"{many}{found.name}, {found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}, {versions}"


def peak_flops() -> float | None:
    """Return the GPU's peak in bfloat16 operations a second, or None if unknown."""
    name = torch.cuda.get_device_name(0) if on_gpu() else ""
    return next((peak for word, peak in PEAKS.items() if word in name), None)


def seconds(work: Callable[[], object], *, repeats: int) -> float:
    """Return the least seconds of `repeats` runs of work, after one that allocates."""
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
    """Return the peak memory of the GPU that torch holds during work, in GiB, or 0 without a GPU."""
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


@contextmanager
def fresh(config: FreshModelConfig) -> Iterator[tuple[Path, int]]:
    """Yield a temporary folder with a fresh model, and its number of parameters."""
    with tempfile.TemporaryDirectory(prefix="temper-gpu-") as folder:
        yield Path(folder), make_model(Path(folder), config, seed=0)


@contextmanager
def attention_only(*, small: bool) -> Iterator[tuple[Path, int]]:
    """Yield a temporary folder with a fresh Qwen 3 of 4 M or 120 M parameters, and the exact number."""
    width, layers = (256, 4) if small else (1024, 8)
    with tempfile.TemporaryDirectory(prefix="temper-gpu-") as folder:
        yield Path(folder), fresh_qwen3(Path(folder), width=width, layers=layers)

"""The kernels of Mamba-2, compiled in parallel for the parts after it, so that Triton's tuner only has to measure them.

The tuner compiles the configurations of a kernel in turn: 110 for a scan and its gradient, which took 13 minutes on an H100.
Here each process calls a scan and its gradient too, but each call compiles its share of the configurations and launches none.
"""

import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from gpu.kernels import REAL, scan_and_gradients
from gpu.machine import on_gpu
from gpu.measure import Report
from transformers.models.nemotron_h import modeling_nemotron_h

IN_MODELS = replace(REAL, batch=1, channels=32, groups=1)
"""As in the hybrids of the check. Packed rows have kernels of their own."""
SHAPES = (REAL, IN_MODELS, replace(IN_MODELS, starts=(0, 700, 1500)))


def run(report: Report, *, small: bool) -> None:
    """Compile with a process for each core."""
    if small:
        report.note("it needs Triton and a GPU: nothing of it runs here")
        return
    count = len(os.sched_getaffinity(0))
    began = time.monotonic()
    shares = [subprocess.Popen([sys.executable, "-m", "gpu.compiling", str(n), str(count)]) for n in range(count)]
    failed = sum(share.wait() != 0 for share in shares)
    report.figure("processes that failed", failed, at_most=0)
    report.figure(f"{count} processes compiled in", time.monotonic() - began, "s")


def compile_share(number: int, count: int) -> int:
    """Compile each `count`-th configuration from `number` on. Return how many.

    Each process meets the configurations in the same order, so that the shares together have each of them once.
    """
    from triton.runtime.autotuner import Autotuner  # absent on machines without a GPU

    met = compiled = 0

    def compile_only(tuner: Any, *arguments: Any, **options: Any) -> None:
        nonlocal met, compiled
        tuner.best_config = tuner.configs[0]  # which mamba-ssm reads
        for config in tuner.configs:
            if met % count == number:
                tuner.fn.run(*arguments, **options | config.all_kwargs() | {"warmup": True})
                compiled += 1
            met += 1

    Autotuner.run = compile_only
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            scan_and_gradients(modeling_nemotron_h.mamba2_chunk_scan, shape, shape.inputs(dtype))
    return compiled


if __name__ == "__main__":
    assert on_gpu()
    print(compile_share(*map(int, sys.argv[1:])), "configurations")

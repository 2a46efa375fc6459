"""The Mamba-2 kernels of mamba-ssm without a GPU: Triton's interpreter runs them, and the GPU check's comparison judges them.

Run it by `PYTHONPATH=tests:SITE python tests/support/interpreted_kernels.py REPORT`. SITE holds mamba-ssm. It exits with 3 if
a figure does not hold.

The interpreter has no devices, runs the first configuration of each kernel, and multiplies bfloat16 as integers. So the
devices are stubs, each kernel keeps its smallest configuration, and the operands of its products are float32.
"""

import math
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton.language as tl
from gpu.kernels import Scan, compare, compare_whole, note_kernels
from gpu.machine import SMALL
from gpu.measure import Report
from mamba_ssm.ops.triton import ssd_bmm, ssd_chunk_scan, ssd_chunk_state, ssd_combined, ssd_state_passing
from transformers.models.nemotron_h import modeling_nemotron_h
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpreterBuilder

BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Largest permitted error. The interpreter multiplies float32 without rounding to TF32."""
SCANS = (
    (torch.float32, Scan(batch=2, length=45, heads=1, channels=16, groups=1, state=16, chunk_size=32)),
    (torch.float32, Scan(batch=1, length=45, heads=4, channels=8, groups=2, state=16, chunk_size=16)),
    (
        torch.float32,
        Scan(batch=1, length=45, heads=2, channels=8, groups=2, state=16, chunk_size=16, starts=(0, 13, 32)),
    ),
    (torch.bfloat16, Scan(batch=1, length=45, heads=2, channels=16, groups=2, state=16, chunk_size=32)),
)
"""Shapes whose chunks do not divide the length."""
multiply = InterpreterBuilder.create_dot


def multiply_values(builder: InterpreterBuilder, left: Any, right: Any, *rest: Any) -> Any:
    """Multiply bfloat16 by its values. They are exact in float32, as on a GPU."""
    operands = (builder.cast_impl(one, tl.float32) if one.dtype.scalar == tl.bfloat16 else one for one in (left, right))
    return multiply(builder, *operands, *rest)


def main(file: Path) -> int:
    """Compare scans, then a whole hybrid. Return an exit status as the GPU check does."""
    torch.set_num_threads(1)
    report = Report(file)
    for module in (ssd_bmm, ssd_chunk_scan, ssd_chunk_state, ssd_combined, ssd_state_passing):
        for kernel in vars(module).values():
            if isinstance(kernel, Autotuner):
                kernel.configs = [min(kernel.configs, key=lambda config: math.prod(config.kwargs.values()))]
    with (
        patch.object(InterpreterBuilder, "create_dot", multiply_values),
        patch.object(torch.cuda, "device", lambda _: nullcontext()),
        patch.object(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=1)),
    ):
        note_kernels(report)
        for dtype, shape in SCANS:
            compare(report, modeling_nemotron_h.mamba2_chunk_scan, shape, dtype=dtype, at_most=BOUNDS[dtype])
        compare_whole(report, SMALL, tokens=(1, 45), at_most=BOUNDS[torch.float32], kernels="cuda")
    return 0 if report.holds else 3


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

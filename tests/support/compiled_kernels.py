"""Compile the Mamba-2 kernels of mamba-ssm for an NVIDIA GPU that this machine does not have. Print the CPU seconds of each.

Run it by `PYTHONPATH=tests:SITE python tests/support/compiled_kernels.py 90`. SITE holds mamba-ssm, and 90 is an H100. A scan
and its gradient call each kernel as on a GPU, but each call stops once it has compiled the first configuration.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from gpu.kernels import Scan
from mamba_ssm.ops.triton import ssd_bmm, ssd_chunk_scan, ssd_chunk_state, ssd_combined, ssd_state_passing
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

SHAPE = Scan(batch=1, length=512, heads=16, channels=64, groups=2, state=128, chunk_size=256)
"""Sizes of a head, a state and a chunk as in Nemotron-H."""
ELF = b"\x7fELF"
run = JITFunction.run


@contextmanager
def pretend(architecture: int) -> Iterator[dict[str, float]]:
    """Compile for this architecture instead of launching. Yield the CPU seconds of each kernel."""
    found: dict[str, float] = {}

    def compile_only(kernel: Any, *arguments: Any, **options: Any) -> Any:
        began = _cpu_seconds()
        made = run(kernel, *arguments, **(options | {"warmup": True}))
        assert made.asm["cubin"].startswith(ELF), f"{kernel.fn.__name__} has no machine code"
        found.setdefault(kernel.fn.__name__, _cpu_seconds() - began)  # the gradient calls some again
        return made

    driver = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", architecture, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
    )
    triton.runtime.driver.set_active(driver)
    with (
        patch.object(JITFunction, "run", compile_only),
        patch.object(torch.cuda, "device", lambda _: nullcontext()),
        patch.object(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132)),
    ):
        yield found


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the assemblers that it started."""
    return sum(os.times()[:4])


def main(architecture: int) -> None:
    """Compile the kernels of a scan of bfloat16 and of its gradient."""
    for module in (ssd_bmm, ssd_chunk_scan, ssd_chunk_state, ssd_combined, ssd_state_passing):
        for kernel in vars(module).values():
            if isinstance(kernel, Autotuner):
                kernel.configs = kernel.configs[:1]
    own = {name: value.requires_grad_() for name, value in SHAPE.inputs(torch.bfloat16).items()}
    with pretend(architecture) as found:
        y, final = ssd_combined.mamba_chunk_scan_combined(
            *(own[name] for name in ("x", "dt", "a", "b", "c")),
            SHAPE.chunk_size,
            D=own["d"],
            dt_bias=own["bias"],
            dt_softplus=True,
            initial_states=own["initial"],
            return_final_states=True,
        )
        (y.sum() + final.sum()).backward()
    for name, seconds in found.items():
        print(f"{name} {seconds:.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""The scan that transformers calls, and a whole hybrid with it, against a reference in double precision.

Suffixes as in `learner/models/mamba_scan.py`.
"""

import inspect
import math
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from gpu.machine import MIDDLE, SMALL, device, fresh, on_gpu, seconds
from gpu.measure import Report
from transformers import PreTrainedModel
from transformers.models.nemotron_h import modeling_nemotron_h

from temper.learner.models import mamba_scan
from temper.learner.models.kernels import find_kernel
from temper.learner.models.loading import read_model

BOUNDS = {torch.float32: 5e-3, torch.bfloat16: 5e-2}
"""Largest permitted error, as a share of the largest value: Triton multiplies float32 in TF32."""
VALUES = ("y", "the state at the end")
FUNCTIONS = ("mamba2_chunk_scan", "mamba2_split_conv1d_scan_combined", "causal_conv1d_fn")


def run(report: Report, *, small: bool) -> None:
    """Compare values and gradients, in float32 and bfloat16, and measure the scan."""
    for name in FUNCTIONS:
        bound = find_kernel(vars(modeling_nemotron_h)[name])
        report.note(f"{name}: {'a kernel of ' + bound[0] if bound is not None and bound[1] else 'a reference'}")
    scan = modeling_nemotron_h.mamba2_chunk_scan
    for dtype in (torch.float32, torch.bfloat16):
        inputs = _inputs(small=small, dtype=dtype)
        wanted = _exact(inputs)
        found = _passed(scan, inputs, chunk_size=32 if small else 256)
        errors = {name: _error(value, wanted[name]) for name, value in found.items()}
        for name in VALUES:
            report.figure(f"scan, {_word(dtype)}: error of {name}", errors.pop(name), at_most=BOUNDS[dtype])
        worst, error = largest(errors)
        report.figure(f"scan, {_word(dtype)}: largest error, of {worst}", error, at_most=BOUNDS[dtype])
    inputs = _inputs(small=small, dtype=torch.bfloat16 if on_gpu() else torch.float32)
    for name, function in (("what transformers calls", scan), ("the plain one", mamba_scan.replacement())):
        taken = seconds(partial(_passed, function, inputs, chunk_size=32 if small else 256), repeats=3)
        report.figure(f"scan forward and backward, {name}", 1000 * taken, "ms")
    _whole(report, small=small)


def _inputs(*, small: bool, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the arguments of a scan. The last is the initial state."""
    draw = torch.Generator().manual_seed(0)
    batch, length, heads, width, groups, state = (2, 70, 4, 8, 2, 16) if small else (2, 2048, 64, 64, 8, 128)
    made = {
        "x": torch.randn(batch, length, heads, width, generator=draw),
        "dt": torch.rand(batch, length, heads, generator=draw) * 0.2,
        "a": -torch.rand(heads, generator=draw) - 0.5,
        "b": torch.randn(batch, length, groups, state, generator=draw) / state**0.5,
        "c": torch.randn(batch, length, groups, state, generator=draw) / state**0.5,
        "d": torch.randn(heads, generator=draw),
        "initial": torch.randn(batch, heads, width, state, generator=draw),
    }
    rounded = ("x", "dt", "b", "c")
    return {name: value.to(device(), dtype if name in rounded else None) for name, value in made.items()}


def _passed(scan: Any, inputs: dict[str, torch.Tensor], *, chunk_size: int) -> dict[str, torch.Tensor]:
    """Return the outputs and the gradients of a function with the signature of transformers' scan."""
    own = {name: value.detach().clone().requires_grad_() for name, value in inputs.items()}
    y, final = scan(
        *(own[name] for name in ("x", "dt", "a", "b", "c")),
        chunk_size,
        D=own["d"],
        initial_states=own["initial"],
        return_final_states=True,
    )
    return _with_gradients(y, final, own)


def _exact(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the same by the plain scan in double precision on the CPU."""
    own = {name: value.detach().double().cpu().requires_grad_() for name, value in inputs.items()}
    y, final = mamba_scan.continued_scan(
        *(own[name] for name in ("x", "dt", "a", "b", "c")), chunk_size=64, d_H=own["d"], initial_BHPN=own["initial"]
    )
    return _with_gradients(y, final, own)


def _with_gradients(y: torch.Tensor, final: torch.Tensor, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    (y.float().sin().sum() + final.float().sin().sum()).backward()
    gradients = {f"the gradient of {name}": value.grad for name, value in own.items() if value.grad is not None}
    assert len(gradients) == len(own), f"no gradient of {own.keys() - gradients.keys()}"
    return dict(zip(VALUES, (y.detach(), final.detach()), strict=True)) | gradients


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference as a share of the largest value."""
    return ((found.double().cpu() - wanted).abs().max() / wanted.abs().max()).item()


def _whole(report: Report, *, small: bool) -> None:
    """Compare the gradients of a whole hybrid, with all available fused layers, with double precision on the CPU."""
    with fresh(SMALL if small else MIDDLE) as (folder, _):
        exact = read_model(folder, device="cpu").double()
        here = read_model(folder).to(device())
        ids_BT = torch.randint(0, 256, (2, 100), generator=torch.Generator().manual_seed(1))
        functions = {name: vars(modeling_nemotron_h)[name] for name in FUNCTIONS}
        plain = {name: inspect.getclosurevars(one).nonlocals["torch_function"] for name, one in functions.items()}
        with patch.multiple(modeling_nemotron_h, **plain):  # no kernel takes double precision of a CPU
            wanted = _loss(exact, ids_BT)
        mamba_scan.install()
        found = _loss(here, ids_BT.to(device()))
        errors = {
            name: ((found[name].double().cpu() - value).norm() / value.norm()).item() for name, value in wanted.items()
        }
    _, error = largest(errors)
    report.figure("a hybrid in float32: error of the worst parameter's gradient", error, at_most=2e-2)


def largest(errors: dict[str, float]) -> tuple[str, float]:
    """Return the name and the value of the largest error. NaN is larger than any number."""
    return max(errors.items(), key=lambda one: math.inf if math.isnan(one[1]) else one[1])


def _loss(model: PreTrainedModel, ids_BT: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradients of a model's loss by parameter."""
    model.train()
    model(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss.backward()
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""The scan that transformers calls, and a whole hybrid with it, against a reference in double precision.

Suffixes as in `learner/models/mamba_scan.py`.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from gpu.machine import MIDDLE, SMALL, device, fresh, on_gpu, seconds
from gpu.measure import Report
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.models.nemotron_h import modeling_nemotron_h

from temper.learner.models import mamba_scan
from temper.learner.models.config import FreshModelConfig
from temper.learner.models.kernels import Device, find_kernel
from temper.learner.models.loading import read_model
from temper.learner.models.logprobs import vocabulary_scores

BOUNDS = {torch.float32: 5e-3, torch.bfloat16: 5e-2}
"""Largest permitted error, as a share of the largest value: Triton multiplies float32 in TF32."""
VALUES = ("y", "the state at the end")
FUNCTIONS = ("mamba2_chunk_scan", "mamba2_split_conv1d_scan_combined", "causal_conv1d_fn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The shape of a scan."""

    batch: int
    length: int
    heads: int
    channels: int
    groups: int
    state: int
    chunk_size: int
    starts: tuple[int, ...] = (0,)
    """First positions of the sequences in each row. The initial state belongs to the first of them."""

    def inputs(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Return its tensors. Tokens have the given type."""
        draw = torch.Generator().manual_seed(0)
        tokens = (self.batch, self.length)
        made = {
            "x": torch.randn(*tokens, self.heads, self.channels, generator=draw),
            "dt": torch.randn(*tokens, self.heads, generator=draw),
            "a": -torch.rand(self.heads, generator=draw) - 0.5,
            "b": torch.randn(*tokens, self.groups, self.state, generator=draw) / self.state**0.5,
            "c": torch.randn(*tokens, self.groups, self.state, generator=draw) / self.state**0.5,
            "d": torch.randn(self.heads, generator=draw),
            "bias": torch.rand(self.heads, generator=draw) - 3,
            "initial": torch.randn(self.batch, self.heads, self.channels, self.state, generator=draw),
        }
        rounded = ("x", "dt", "b", "c")
        return {name: value.to(device(), dtype if name in rounded else None) for name, value in made.items()}

    def sequences(self) -> torch.Tensor | None:
        """Return the number of each position's sequence, or None if a row is one sequence."""
        if len(self.starts) == 1:
            return None
        places = torch.arange(self.length, device=device())
        firsts = torch.tensor(self.starts, device=device())
        return (torch.searchsorted(firsts, places, right=True) - 1).int().expand(self.batch, -1).contiguous()


SMALLEST = Scan(batch=2, length=70, heads=4, channels=8, groups=2, state=16, chunk_size=32)
REAL = Scan(batch=2, length=2048, heads=64, channels=64, groups=8, state=128, chunk_size=256)


def run(report: Report, *, small: bool) -> None:
    """Compare values and gradients, in float32 and bfloat16, and measure the scan."""
    note_kernels(report)
    scan, shape = modeling_nemotron_h.mamba2_chunk_scan, SMALLEST if small else REAL
    packed = replace(shape, starts=(0, shape.length // 3, shape.length // 2))
    for dtype in (torch.float32, torch.bfloat16):
        compare(report, scan, shape, dtype=dtype, at_most=BOUNDS[dtype])
        if mamba_scan.separates_sequences():
            compare(report, scan, packed, dtype=dtype, at_most=BOUNDS[dtype])
    inputs = shape.inputs(torch.bfloat16 if on_gpu() else torch.float32)
    for name, function in (("what transformers calls", scan), ("the plain one", mamba_scan.scan)):
        taken = seconds(partial(scan_and_gradients, function, shape, inputs), repeats=3)
        report.figure(f"scan forward and backward, {name}", 1000 * taken, "ms")
    compare_head(report, shape=(7, 16, 300) if small else (4096, 2048, 151936))
    compare_whole(report, SMALL if small else MIDDLE, tokens=(2, 100), at_most=2e-2)


def note_kernels(report: Report) -> None:
    """Note for each function that transformers calls whether it is a kernel."""
    for name in FUNCTIONS:
        bound = find_kernel(vars(modeling_nemotron_h)[name])
        report.note(f"{name}: {'a kernel of ' + bound[0] if bound is not None and bound[1] else 'a reference'}")


def compare(report: Report, scan: Callable[..., Any], shape: Scan, *, dtype: torch.dtype, at_most: float) -> None:
    """Compare the values and gradients of a function with transformers' signature with the plain scan in double precision."""
    inputs = shape.inputs(dtype)
    wanted = _exact(shape, inputs)
    found = scan_and_gradients(scan, shape, inputs)
    errors = {name: _error(value, wanted[name]) for name, value in found.items()}
    what = f"scan, {_word(dtype)}"
    what += f", {len(shape.starts)} sequences a row" if len(shape.starts) > 1 else ""
    for name in VALUES:
        report.figure(f"{what}: error of {name}", errors.pop(name), at_most=at_most)
    worst, error = largest(errors)
    report.figure(f"{what}: largest error, of {worst}", error, at_most=at_most)


def scan_and_gradients(
    scan: Callable[..., Any], shape: Scan, inputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the outputs of a scan and the gradients of its inputs."""
    own = {name: value.detach().clone().requires_grad_() for name, value in inputs.items()}
    sequences = shape.sequences()
    y, final = scan(
        *(own[name] for name in ("x", "dt", "a", "b", "c")),
        shape.chunk_size,
        D=own["d"],
        dt_bias=own["bias"],
        dt_softplus=True,
        initial_states=own["initial"],
        return_final_states=True,
        **({} if sequences is None else {"seq_idx": sequences}),
    )
    return _with_gradients(y, final, own)


def _exact(shape: Scan, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the same by the plain scan in double precision on the CPU, one sequence at a time."""
    own = {name: value.detach().double().cpu().requires_grad_() for name, value in inputs.items()}
    positive = functional.softplus(own["dt"] + own["bias"])
    ys, final, state = [], own["initial"], own["initial"]
    for start, end in zip(shape.starts, (*shape.starts[1:], shape.length), strict=True):
        x, dt, b, c = (one[:, start:end] for one in (own["x"], positive, own["b"], own["c"]))
        y, final = mamba_scan.chunk_scan(x, dt, own["a"], b, c, chunk_size=64, d_H=own["d"], initial_BHPN=state)
        ys.append(y)
        state = torch.zeros_like(state)
    return _with_gradients(torch.cat(ys, dim=1), final, own)


def _with_gradients(y: torch.Tensor, final: torch.Tensor, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the values, and the gradients of their sum with random weights, which are exact in every type."""
    draw = torch.Generator().manual_seed(1)
    weights = [torch.randn(one.shape, generator=draw).bfloat16().to(one) for one in (y, final)]
    torch.autograd.backward((y, final), weights)
    gradients = {f"the gradient of {name}": value.grad for name, value in own.items() if value.grad is not None}
    assert len(gradients) == len(own), f"no gradient of {own.keys() - gradients.keys()}"
    return dict(zip(VALUES, (y.detach(), final.detach()), strict=True)) | gradients


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference as a share of the largest value."""
    return ((found.double().cpu() - wanted).abs().max() / wanted.abs().max()).item()


CHECKED = 7
"""Rows of the output layer that are computed in double precision too."""


def compare_head(report: Report, *, shape: tuple[int, int, int]) -> None:
    """Compare the output layer in float32 of a bfloat16 model with double precision, and measure it. `shape` is N, D and V."""
    rows, width, vocabulary = shape
    draw = torch.Generator().manual_seed(0)
    hidden_ND, weight_VD = torch.randn(rows, width, generator=draw), torch.randn(vocabulary, width, generator=draw)
    targets_N = torch.randint(0, vocabulary, (rows,), generator=draw)
    own = [value.bfloat16().to(device()).requires_grad_() for value in (hidden_ND, weight_VD / width**0.5)]
    hidden, weight = (value.detach().double().cpu() for value in own)
    exact = hidden[:CHECKED].requires_grad_()

    def scored(*, float32: bool) -> torch.Tensor:
        targets = targets_N.to(device())
        logprobs_N, _ = vocabulary_scores(own[0], own[1], None, targets, entropy=False, tokens=rows, float32=float32)
        own[0].grad = own[1].grad = None
        logprobs_N.sum().backward()
        return logprobs_N.detach()

    wanted_N = (exact @ weight.T).log_softmax(-1).gather(-1, targets_N[:CHECKED, None])[:, 0]
    wanted_N.sum().backward()
    error = (scored(float32=True)[:CHECKED].double().cpu() - wanted_N.detach()).abs().max().item()
    report.figure("output layer in float32: error of a log-probability", error, at_most=1e-4)
    assert exact.grad is not None
    assert own[0].grad is not None
    difference = (own[0].grad[:CHECKED].double().cpu() - exact.grad).norm() / exact.grad.norm()
    report.figure("output layer in float32: error of the hidden states' gradient", difference.item(), at_most=1e-2)
    for name, float32 in (("float32", True), ("bfloat16", False)):
        taken = seconds(partial(scored, float32=float32), repeats=3)
        report.figure(f"output layer forward and backward, {name}", 1000 * taken, "ms")


def compare_whole(
    report: Report, config: FreshModelConfig, *, tokens: tuple[int, int], at_most: float, kernels: Device | None = None
) -> None:
    """Compare the gradients of a whole hybrid, with all available fused layers, with double precision on the CPU."""
    with fresh(config) as (folder, _):
        exact = read_model(folder, device="cpu").double()
        here = read_model(folder).to(device())
        ids_BT = torch.randint(0, 256, tokens, generator=torch.Generator().manual_seed(1))
        functions = {name: vars(modeling_nemotron_h)[name] for name in FUNCTIONS}
        plain = {name: inspect.getclosurevars(one).nonlocals["torch_function"] for name, one in functions.items()}
        with patch.multiple(modeling_nemotron_h, **plain):  # no kernel takes double precision of a CPU
            wanted = _loss(exact, ids_BT)
        mamba_scan.install(device=kernels)
        found = _loss(here, ids_BT.to(device()))
        errors = {
            name: ((found[name].double().cpu() - value).norm() / value.norm()).item() for name, value in wanted.items()
        }
    _, error = largest(errors)
    report.figure("a hybrid in float32: error of the worst parameter's gradient", error, at_most=at_most)


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

"""Groups whose answers share the pass over their prompt, against full sequences, with and without recomputed layers.

Then rows of unlike lengths end to end, against padded ones.
"""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from bench.learner import group_of_answers
from gpu.machine import MIDDLE, SMALL, attention_only, device, fresh, on_gpu, peak_gib, seconds
from gpu.measure import Report
from support.explicit_attention import BEHIND_PROMPTS, explicit_attention
from transformers import PreTrainedModel

from temper.learner.batches.micro_batches import TrainBatch, build_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.models import mamba_scan, packed_rows
from temper.learner.models.borders import attend, border_mask
from temper.learner.models.loading import cast, read_model, recompute
from temper.learner.models.logprobs import token_logprobs
from temper.learner.models.scorer import Scorer
from temper.learner.models.shared_prompt import causal_logits

AGAIN = "layers computed again"
WAYS = (
    ("in full", False, False, True),
    ("shared", True, False, True),
    ("shared, with a mask", True, False, False),
    (f"in full, {AGAIN}", False, True, True),
    (f"shared, {AGAIN}", True, True, True),
)
"""Each measurement: its name, whether prompts are shared, whether layers are recomputed, and whether attention may use borders
in place of a mask."""


def run(report: Report, *, small: bool) -> None:
    """Measure a model with attention alone, then a hybrid, whose kernels may be missing."""
    mamba_scan.install()
    _alignment(report)
    answers, prompt, answer = (8, 128, 16) if small else (16, 2048, 256)
    group = group_of_answers(answers=answers, prompt=prompt, answer=answer)
    report.note(f"{answers} answers of {answer} tokens to a prompt of {prompt}, forward and backward")
    with attention_only(small=small) as (folder, parameters):
        _ways(report, folder, f"Qwen 3 of {parameters:,}", group, parameters=parameters)
        _packed(report, folder, f"Qwen 3 of {parameters:,}", longest=64 if small else 4096)
    with fresh(SMALL if small else MIDDLE) as (folder, parameters):
        _ways(report, folder, f"hybrid of {parameters:,}", group, parameters=parameters)
        _packed(report, folder, f"hybrid of {parameters:,}", longest=64 if small else 4096)


def _alignment(report: Report) -> None:
    """Compare attention by borders with an explicit mask in double precision on the CPU: values and gradients."""
    queries, keys = BEHIND_PROMPTS
    draw = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if on_gpu() else torch.float32
    shapes = ((sum(queries), 4, 64), (sum(keys), 2, 64), (sum(keys), 2, 64))
    exact = [torch.randn(shape, generator=draw).to(dtype).double().requires_grad_() for shape in shapes]
    own = [one.detach().to(device(), dtype).requires_grad_() for one in exact]
    module: Any = SimpleNamespace(num_key_value_groups=2)
    rows = [one.transpose(0, 1)[None] for one in own]
    found = attend(module, rows[0], rows[1], rows[2], border_mask(queries, keys))[0][0]
    wanted = explicit_attention(exact[0], exact[1], exact[2], queries, keys)
    pairs = [(found, wanted)]
    pairs += zip(torch.autograd.grad(found.sum(), own), torch.autograd.grad(wanted.sum(), exact), strict=True)
    for name, (one, other) in zip(("outputs", "the gradient of queries", "of keys", "of values"), pairs, strict=True):
        error = ((one.double().cpu() - other).norm() / other.norm()).item()
        report.figure(f"answers behind prompts, error of {name}", error, at_most=2e-2 if on_gpu() else 1e-5)


def _ways(report: Report, folder: Path, what: str, group: list[TrainingSample], *, parameters: int) -> None:
    """Measure passes over a group, and compare their gradients."""
    taken: dict[str, float] = {}
    whole: torch.Tensor | None = None
    for way, shared, again, by_borders in WAYS:
        model = read_model(folder)
        cast(model, bf16=on_gpu())
        model.to(device()).train()
        if again:
            recompute(model, "full")
        batch = build_batch(group, ranks=1, micro_batch_tokens=16384, pad_id=0, shared_prompts=shared)
        assert any(one.prompts is not None for one in batch.micro_batches[0]) == shared
        packs = by_borders and not packed_rows.install(model, model)
        work = partial(_passes, model, batch, packs=packs)
        gradient = work()
        taken[way] = seconds(work, repeats=3)
        report.figure(f"{what}: {way}", 1000 * taken[way], "ms")
        if whole is None:
            whole = gradient
        else:
            error = ((gradient - whole).norm() / whole.norm()).item()
            report.figure(f"{what}: {way}, error of the gradient", error, at_most=5e-2 if on_gpu() else 1e-5)
        if on_gpu():
            report.figure(f"{what}: {way}, memory", peak_gib(work), "GiB")
    tokens = sum(len(sample.ids) for sample in group)
    report.figure(f"{what}: in full, model FLOPs", 6e-12 * parameters * tokens / taken["in full"], "T a second")
    faster = taken["shared, with a mask"] / taken["shared"]
    report.figure(f"{what}: shared by borders over by a mask", faster, "times faster")
    for kind in ("", f", {AGAIN}"):
        faster = taken[f"in full{kind}"] / taken[f"shared{kind}"]
        report.figure(f"{what}: shared over in full{kind}", faster, "times faster")


def _packed(report: Report, folder: Path, what: str, *, longest: int) -> None:
    """Compare passes over rows of which the longest is 16 times the shortest."""
    model = read_model(folder)
    cast(model, bf16=on_gpu())
    scorer = Scorer(model.to(device()), model, tokens=4096)
    model.train()
    report.figure(f"{what}: rows are packed", float(scorer.packs), at_least=1.0)
    lengths = torch.linspace(longest // 16, longest, 8, device=device()).long()
    wanted_BT = torch.arange(longest, device=device()) < lengths[:, None]
    wanted_BT[:, 0] = False
    ids_BT = torch.randint(0, 256, wanted_BT.shape, generator=torch.Generator().manual_seed(0)).to(device())

    def gradient(packs: bool) -> torch.Tensor:
        scorer.packs = packs and scorer.packs
        model.zero_grad()
        scorer(ids_BT, wanted_BT).logprobs_BT.mean().backward()
        return torch.cat([value.grad.flatten() for value in model.parameters() if value.grad is not None]).float()

    packed, packed_s = gradient(True), seconds(partial(gradient, True), repeats=3)
    padded, padded_s = gradient(False), seconds(partial(gradient, False), repeats=3)
    error = ((packed - padded).norm() / padded.norm()).item()
    report.figure(f"{what}: packed rows, error of the gradient", error, at_most=5e-2 if on_gpu() else 1e-5)
    report.figure(f"{what}: packed over padded", padded_s / packed_s, "times faster")


def _passes(model: PreTrainedModel, batch: TrainBatch, *, packs: bool) -> torch.Tensor:
    """Compute the gradient of a batch and return it as one vector."""
    model.zero_grad()
    for micro_batch in batch.micro_batches[0]:
        ids_BT = torch.from_numpy(micro_batch.ids_BT).to(device())
        logits_BTV = causal_logits(model, model.config, ids_BT, micro_batch.prompts, packs=packs)
        weights_BT = torch.from_numpy(micro_batch.weights_BT).to(device())
        (-(token_logprobs(logits_BTV, ids_BT) * weights_BT).sum()).backward()
    gradients = [value.grad.flatten() for value in model.parameters() if value.grad is not None]
    return torch.cat(gradients).float()

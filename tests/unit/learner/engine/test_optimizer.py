import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import tiny_models
from support.refusals import refuses
from support.tiny_models import DENSE
from transformers import LlamaConfig, LlamaForCausalLM

from temper.learner.config import LearnerConfig, OptimConfig, require_together
from temper.learner.engine.muon import GuardedMuon
from temper.learner.engine.optimizer import GuardedAdamW, learning_rate, muon_groups, parameter_groups
from temper.learner.models.loading import read_model


def tiny_llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(vocab_size=288, **DENSE))


def rates(optim: OptimConfig, *, total_steps: int) -> list[float]:
    return [learning_rate(step, optim=optim, total_steps=total_steps) for step in range(total_steps)]


def test_the_learning_rate_follows_warm_up_and_schedule():
    constant = OptimConfig(learning_rate=1.0, warmup_steps=2)
    assert rates(constant, total_steps=4) == [0.5, 1.0, 1.0, 1.0]
    linear = OptimConfig(learning_rate=1.0, warmup_steps=2, schedule="linear")
    assert rates(linear, total_steps=6) == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25])
    cosine = OptimConfig(learning_rate=1.0, warmup_steps=0, schedule="cosine", final_fraction=0.2)
    assert rates(cosine, total_steps=2) == pytest.approx([1.0, 0.6])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup_steps", [0, 1, 3, 9])
def test_no_step_has_the_rate_zero(schedule, warmup_steps):
    optim = OptimConfig(learning_rate=1e-3, warmup_steps=warmup_steps, schedule=schedule)
    for total_steps in range(1, 12):
        assert min(learning_rate(step, optim=optim, total_steps=total_steps) for step in range(total_steps + 3)) > 0


def test_the_learning_rate_stays_after_the_last_step():
    linear = OptimConfig(learning_rate=1.0, warmup_steps=0, schedule="linear", final_fraction=0.1)
    assert learning_rate(50, optim=linear, total_steps=10) == rates(linear, total_steps=10)[-1] == pytest.approx(0.19)


def test_weight_decay_spares_vectors():
    model = torch.nn.Linear(2, 3)
    matrices, vectors = parameter_groups(model, weight_decay=0.1)
    assert (matrices["params"], matrices["weight_decay"]) == ([model.weight], 0.1)
    assert (vectors["params"], vectors["weight_decay"]) == ([model.bias], 0.0)


def test_a_gradient_that_is_not_finite_changes_nothing():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = GuardedAdamW([{"params": [parameter]}], optim=OptimConfig(), guard=True)
    parameter.grad = torch.tensor([1.0, math.inf])
    optimizer.step()
    assert optimizer.overflow
    assert parameter.tolist() == [1.0, 1.0]
    assert not optimizer.state[parameter]


def test_the_whole_gradient_is_clipped_to_its_norm():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = GuardedAdamW([{"params": [parameter]}], optim=OptimConfig(grad_clip=1.0), guard=True)
    parameter.grad = torch.tensor([3.0, 4.0])
    optimizer.step()
    assert not optimizer.overflow
    assert parameter.grad.tolist() == pytest.approx([0.6, 0.8], abs=1e-5)


def test_muon_takes_the_layers_matrices_and_adamw_the_rest():
    model = tiny_llama()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optim = OptimConfig(kind="muon", learning_rate=1e-3, muon_learning_rate=2e-2, weight_decay=0.1)
    matrices, *rest = muon_groups(model, optim=optim)
    assert matrices["lr_scale"] == pytest.approx(20)
    assert all("proj" in names[id(parameter)] for parameter in matrices["params"])
    assert len(matrices["params"]) == 7 * model.config.num_hidden_layers
    others = {names[id(parameter)] for group in rest for parameter in group["params"]}
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= others
    assert sum(len(group["params"]) for group in (matrices, *rest)) == len(names)


def test_muon_moves_matrices_as_torchs_muon_does():
    torch.manual_seed(0)
    model = tiny_llama()
    optim = OptimConfig(kind="muon", learning_rate=1e-3, muon_learning_rate=0.1, grad_clip=0.0)
    groups = muon_groups(model, optim=optim)
    matrix = groups[0]["params"][0]
    ours, theirs = GuardedMuon(groups, optim=optim, guard=True), torch.nn.Parameter(matrix.detach().clone())
    reference = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.0)
    for group in ours.param_groups:
        group["lr"] = 1e-3 * group.get("lr_scale", 1.0)
    start = matrix.detach().clone()
    for _ in range(3):
        gradient = torch.randn_like(matrix)
        matrix.grad, theirs.grad = gradient.clone(), gradient.clone()
        ours.step()
        reference.step()
    moved = (matrix - start).norm()
    assert moved > 0.1
    assert (matrix - theirs).norm() < 0.02 * moved  # torch computes in bfloat16


def orthogonalized(matrix: torch.Tensor) -> torch.Tensor:
    """Return five steps of Newton-Schulz on a matrix in float64, scaled as in https://kellerjordan.github.io/posts/muon."""
    rows, columns = matrix.shape
    found = (matrix if rows <= columns else matrix.T).double()
    found = found / found.norm()
    for _ in range(5):
        square = found @ found.T
        found = 3.4445 * found + (-4.7750 * square + 2.0315 * square @ square) @ found
    return (found if rows <= columns else found.T) * max(1.0, rows / columns) ** 0.5


@pytest.mark.parametrize("make", [tiny_models.qwen3_moe, tiny_models.nemotron_h_moe], ids=lambda make: make.__name__)
def test_muon_moves_each_matrix_of_each_expert_like_a_single_one(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """Gate and up projections of an expert are two matrices, as in a checkpoint."""
    model = read_model(make(tmp_path))
    optim = OptimConfig(kind="muon", learning_rate=1e-3, muon_learning_rate=0.1, grad_clip=0.0)
    ours = GuardedMuon(muon_groups(model, optim=optim), optim=optim, guard=True)
    stacks = [(n, p) for n, p in model.named_parameters() if ".experts." in n]
    assert stacks
    starts = [stack.detach().clone() for _, stack in stacks]
    for _, stack in stacks:
        stack.grad = torch.randn_like(stack)
    gradients = [stack.grad.clone() for _, stack in stacks if stack.grad is not None]
    for group in ours.param_groups:
        group["lr"] = 0.1
    ours.step()
    for (name, stack), start, gradient in zip(stacks, starts, gradients, strict=True):
        halves = 2 if "gate_up" in name else 1
        for moved, own in zip((stack - start).detach(), gradient, strict=True):
            for update, matrix in zip(moved.chunk(halves), own.chunk(halves), strict=True):
                alone = -0.1 * orthogonalized(matrix)
                assert (update - alone).norm() < 1e-3 * alone.norm(), name


def test_muon_refuses_a_gradient_that_is_not_finite():
    model = tiny_llama()
    optim = OptimConfig(kind="muon")
    optimizer = GuardedMuon(muon_groups(model, optim=optim), optim=optim, guard=True)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    optimizer.step()
    assert optimizer.overflow
    assert not optimizer.state
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_muon_is_refused_with_its_state_on_a_disk():
    require_together(OptimConfig(kind="muon"), LearnerConfig(zero_stage=3, bf16=True, offload="cpu"))
    with refuses("optim.kind=muon", "learner.offload=nvme"):
        require_together(OptimConfig(kind="muon"), LearnerConfig(zero_stage=3, offload="nvme", offload_dir="/fast"))

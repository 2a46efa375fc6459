"""Frozen parameters, optimisers that skip a broken gradient, their parameter groups, and the learning-rate schedule."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from temper.learner.config import OptimConfig
from temper.learner.models.expert_parallel import STACKS, own_experts
from temper.learner.models.loading import full_shape

EMA = "ema"
"""The exponential moving average of the weights in an optimiser's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPart:
    """This rank's consecutive entries of a flat matrix or stack of matrices, and their place in its partition."""

    shape: torch.Size
    first: int
    """The first entry's index in the flat matrix."""
    start: int
    """The first entry's index in the partition."""
    count: int


class GuardedAdamW(torch.optim.AdamW):
    """AdamW that clips the gradient's norm and skips a step if the norm is not finite, with an exponential moving average of
    the weights if `optim.ema_decay` is set.

    The guard is for ZeRO stage 0, which DeepSpeed does not check. DeepSpeed's engine reads `overflow` (the last step was
    skipped) and `_global_grad_norm` after each step. Above stage 0 a rank sees only its part, and DeepSpeed has checked and
    clipped it.

    Averages of weights, there with equal shares: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging",
    1992.
    """

    overflow = False
    _global_grad_norm = 0.0

    def __init__(self, groups: list[dict[str, Any]], *, optim: OptimConfig, guard: bool) -> None:
        super().__init__(groups, lr=optim.learning_rate, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True)
        self.guard = guard
        self.grad_clip = optim.grad_clip
        self.ema_decay = optim.ema_decay
        self.parts: dict[int, list[MatrixPart]] = {}
        """Muon's parts of matrices, by the id of their partition."""
        self.matrices: dict[int, torch.Size] = {}
        """Muon's shapes of `inner_matrices`, by the id of the parameter."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if not self.guard or self._clip():
            self.update()
            if self.ema_decay:
                self._update_ema()

    def _clip(self) -> bool:
        """Clip the gradient. Return whether its norm is finite."""
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        self._global_grad_norm = float(norm)
        self.overflow = not math.isfinite(self._global_grad_norm)
        if not self.overflow and 0 < self.grad_clip < self._global_grad_norm:
            torch._foreach_mul_(gradients, self.grad_clip / (self._global_grad_norm + 1e-6))
        return not self.overflow

    def update(self) -> None:
        """Update the parameters, without the guard."""
        super().step()

    @torch.no_grad()
    def _update_ema(self) -> None:
        """Update the averages of the parameters that have a state. An average begins with the weights after an update."""
        for weights in (weights for group in self.param_groups for weights in group["params"]):
            state = self.state.get(weights, {})
            if EMA in state:
                state[EMA].lerp_(weights, 1 - self.ema_decay)
            elif state:
                state[EMA] = weights.detach().clone()


def freeze(model: PreTrainedModel, patterns: list[str]) -> None:
    """Freeze the parameters whose name matches one of the regular expressions.

    Raises `ValueError` for a pattern without a match, and if nothing is left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in names):
            raise ValueError(f"learner.frozen has {pattern!r}, which matches no parameter; names are like {names[0]!r}")
    for name, parameter in model.named_parameters():
        if any(re.search(pattern, name) for pattern in patterns):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"learner.frozen={patterns} leaves no parameter to train; remove a pattern")


def parameter_groups(model: torch.nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Return trainable parameters. With weight decay, those with fewer than two axes form a group without it.

    Shared experts form their own group. DeepSpeed reduces it only over ranks that hold the same experts.
    """
    trained: list[Any] = [p for p in model.parameters() if p.requires_grad]
    stacks = [p for p in trained if own_experts(p) is not None]
    parameters = [p for p in trained if own_experts(p) is None]
    groups: list[dict[str, Any]] = [{"params": parameters, "weight_decay": 0.0}]
    if weight_decay:
        groups = [
            {"params": [p for p in parameters if len(full_shape(p)) >= 2], "weight_decay": weight_decay},
            {"params": [p for p in parameters if len(full_shape(p)) < 2], "weight_decay": 0.0},
        ]
    if stacks:
        groups.append({"params": stacks, "weight_decay": weight_decay, "moe": True, "name": stacks[0].group_name})
    return [group for group in groups if group["params"]]


def muon_groups(model: PreTrainedModel, *, optim: OptimConfig) -> list[dict[str, Any]]:
    """Return the groups for Muon: the matrices of linear layers but the output layer, and of experts. The rest is for AdamW.

    `shapes` are as in `inner_matrices`. `lr_scale` is a group's learning rate relative to AdamW's. Raises `ValueError` if
    no matrix is left for Muon.
    """
    matrices = inner_matrices(model)
    if not matrices:
        raise ValueError("optim.kind=muon: the model has no linear layer to train; use optim.kind=adamw")
    taken = {id(weight) for weight, _ in matrices}
    groups: list[dict[str, Any]] = [
        {
            "params": [weight for weight, _ in matrices],
            "shapes": [shape for _, shape in matrices],
            "use_muon": True,
            "momentum": optim.muon_momentum,
            "weight_decay": optim.weight_decay,
            "lr_scale": optim.muon_learning_rate / optim.learning_rate,
        }
    ]
    for group in parameter_groups(model, weight_decay=optim.weight_decay):
        rest = [parameter for parameter in group["params"] if id(parameter) not in taken]
        adam = {"use_muon": False, "betas": (optim.beta1, optim.beta2), "eps": optim.eps}
        groups.append({**group, **adam, "params": rest})
    return [group for group in groups if group["params"]]


def inner_matrices(model: PreTrainedModel) -> list[tuple[torch.Tensor, torch.Size]]:
    """Return the trained weights of linear layers but the output layer, and stacks of experts, each with its matrices' shape.

    The last two axes of a shape are a matrix. A stack of experts has axes before them, and its joined gate and up projections
    are split, because they are two matrices in a layer without experts.
    """
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    ends = {id(parameter) for end in embeddings if end is not None for parameter in end.parameters()}
    linear: list[Any] = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    found = [(weight, full_shape(weight)) for weight in linear]
    for module in model.modules():
        for name, stack in module.named_parameters(recurse=False) if isinstance(module, STACKS) else ():
            experts, rows, columns = full_shape(stack)
            joined = 2 if name == "gate_up_proj" else 1
            found.append((stack, torch.Size([experts, joined, rows // joined, columns])))
    return [(weight, shape) for weight, shape in found if weight.requires_grad and id(weight) not in ends]


def learning_rate(step: int, *, optim: OptimConfig, total_steps: int) -> float:
    """Return the learning rate of step `step` (from 0) of `total_steps`. Later steps keep the rate of the last step.

    A schedule ends after the last step, because a step with the rate 0 would change nothing. Cosine: Loshchilov and Hutter,
    "SGDR", eq. 5, 2017.
    """
    if step < optim.warmup_steps:
        return optim.learning_rate * (step + 1) / optim.warmup_steps
    if optim.schedule == "constant":
        return optim.learning_rate
    last = max(total_steps - 1, optim.warmup_steps)
    progress = (min(step, last) - optim.warmup_steps) / (last + 1 - optim.warmup_steps)
    shape = 1 - progress if optim.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return optim.learning_rate * (optim.final_fraction + (1 - optim.final_fraction) * shape)

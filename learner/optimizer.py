"""AdamW that refuses a broken gradient, its parameter groups, and the learning-rate schedule."""

import math
from collections.abc import Callable

import torch

from learner.config import OptimConfig


class GuardedAdamW(torch.optim.AdamW):
    """AdamW that clips the whole gradient's norm, and does nothing where that norm is not finite.

    It serves ZeRO stage 0, where DeepSpeed has no check of its own; DeepSpeed's engine reads `overflow` (the last step
    was skipped) and `_global_grad_norm` after each step. With `grad_clip` 0 it is plain AdamW: above stage 0 each rank
    sees its part of the gradient only, and DeepSpeed has checked and clipped the whole of it.
    """

    def __init__(self, groups: list[dict[str, object]], *, optim: OptimConfig, guard: bool) -> None:
        super().__init__(groups, lr=optim.learning_rate, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True)
        self.guard = guard
        self.grad_clip = optim.grad_clip
        self.overflow = False
        self._global_grad_norm = 0.0

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if self.guard:
            gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
            self._global_grad_norm = float(norm)
            self.overflow = not math.isfinite(self._global_grad_norm)
            if self.overflow:
                return
            if 0 < self.grad_clip < self._global_grad_norm:
                torch._foreach_mul_(gradients, self.grad_clip / (self._global_grad_norm + 1e-6))
        super().step(closure)


def parameter_groups(model: torch.nn.Module, *, weight_decay: float) -> list[dict[str, object]]:
    """Trainable parameters; where there is weight decay, those with fewer than two axes in a group without it."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not weight_decay:
        return [{"params": parameters, "weight_decay": 0.0}]
    groups: list[dict[str, object]] = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def learning_rate(step: int, *, optim: OptimConfig, total_steps: int) -> float:
    """The learning rate of the step numbered `step` (from 0) of `total_steps`.

    Cosine: Loshchilov and Hutter, "SGDR", eq. 5, 2017.
    """
    if step < optim.warmup_steps:
        return optim.learning_rate * (step + 1) / optim.warmup_steps
    if optim.schedule == "constant":
        return optim.learning_rate
    span = max(1, total_steps - 1 - optim.warmup_steps)
    progress = min(1.0, (step - optim.warmup_steps) / span)
    shape = 1 - progress if optim.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return optim.learning_rate * (optim.final_fraction + (1 - optim.final_fraction) * shape)

"""Muon on whole matrices and on ZeRO's partitions, after the gradient is clipped."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.muon.original_muon import zeropower_via_gram_newtonschulz

from temper.learner.config import OptimConfig
from temper.learner.engine.optimizer import GuardedAdamW, MatrixPart
from temper.learner.engine.optimizer_state import MOMENTUM

NEWTON_SCHULZ_STEPS = 5


class GuardedMuon(GuardedAdamW):
    """Muon for the groups with `use_muon`, AdamW for the others. At stage 0 both are behind the guard.

    Above stage 0, DeepSpeed's Muon clips the update instead of the gradient, except at stage 1 in bfloat16. Here DeepSpeed
    clips the gradient, as for AdamW.

    Muon: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
    """

    def __init__(self, groups: list[dict[str, Any]], *, optim: OptimConfig, guard: bool) -> None:
        super().__init__(groups, optim=optim, guard=guard)
        self._matrices = {id(matrix) for group in groups if group["use_muon"] for matrix in group["params"]}
        # DeepSpeed compiles Newton-Schulz, which needs a compiler and costs more than it saves. This holds for the process, in
        # which nothing else is compiled.
        torch.compiler.set_stance("force_eager")

    def set_parts(self, partitions: Iterable[tuple[torch.Tensor, list[Any], list[MatrixPart]]]) -> None:
        """Store this rank's parts of each Muon partition. ZeRO replaces a group's parameters by its partitions."""
        for partition, parameters, parts in partitions:
            if id(parameters[0]) in self._matrices:
                self.parts[id(partition)] = parts

    @torch.no_grad()
    def update(self) -> None:
        groups = self.param_groups
        for group in groups:
            for weights in group["params"] if group["use_muon"] else ():
                if weights.grad is not None:
                    self._update_matrices(weights, group)
        self.param_groups = [group for group in groups if not group["use_muon"]]
        super().update()
        self.param_groups = groups

    def _update_matrices(self, weights: torch.Tensor, group: dict[str, Any]) -> None:
        """Update a matrix or a partition of matrices. The gradient's memory is reused."""
        gradient: Any = weights.grad
        state = self.state[weights]
        if MOMENTUM not in state:
            state[MOMENTUM] = torch.zeros_like(weights)
        momentum = state[MOMENTUM]
        momentum.lerp_(gradient, 1 - group["momentum"])
        gradient.lerp_(momentum, group["momentum"])
        if id(weights) in self.parts:
            _orthogonalize_parts(gradient, self.parts[id(weights)])
        else:
            gradient.copy_(_orthogonalize(gradient))
        weights.mul_(1 - group["lr"] * group["weight_decay"]).add_(gradient, alpha=-group["lr"])


def _orthogonalize_parts(flat: torch.Tensor, parts: list[MatrixPart]) -> None:
    """Orthogonalize the matrices whose parts are in `flat`. Collective: each rank orthogonalizes one matrix of a batch.

    Each entry is nonzero on at most one rank, so the sum over ranks is exact.
    """
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    device = get_accelerator().current_device_name()
    by_size = sorted(parts, key=lambda part: part.shape.numel())
    for place in range(0, len(by_size), ranks):
        batch = by_size[place : place + ranks]
        rows = torch.zeros(ranks, batch[-1].shape.numel(), device=device)
        for row, part in zip(rows[: len(batch)], batch, strict=True):
            row[part.first : part.first + part.count] = flat[part.start : part.start + part.count]
        own = torch.empty_like(rows[0])
        torch.distributed.reduce_scatter_tensor(own, rows.view(-1))
        if rank < len(batch):
            shape = batch[rank].shape
            own[: shape.numel()] = _orthogonalize(own[: shape.numel()].view(shape)).flatten()
        torch.distributed.all_gather_into_tensor(rows.view(-1), own)
        for row, part in zip(rows[: len(batch)], batch, strict=True):
            flat[part.start : part.start + part.count] = row[part.first : part.first + part.count]


def _orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    rows, columns = matrix.shape
    update: torch.Tensor = zeropower_via_gram_newtonschulz(matrix, steps=NEWTON_SCHULZ_STEPS)
    return update * max(1.0, rows / columns) ** 0.5

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

    DeepSpeed's own class orthogonalizes before it clips, at most stages. For DeepSpeed this is an optimiser like AdamW: it gets
    clipped gradients.

    Muon: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
    """

    def __init__(self, groups: list[dict[str, Any]], *, optim: OptimConfig, guard: bool) -> None:
        super().__init__(groups, optim=optim, guard=guard)
        self._matrices = {id(matrix) for group in groups if group["use_muon"] for matrix in group["params"]}
        # DeepSpeed compiles Newton-Schulz, which needs a compiler and costs more than it saves. This holds for the process, in
        # which nothing else is compiled.
        torch.compiler.set_stance("force_eager")

    def bind(self, partitions: Iterable[tuple[torch.Tensor, list[tuple[Any, MatrixPart]]]]) -> None:
        """Set the parameters' parts of each partition. ZeRO replaces the parameters of a group by its partitions."""
        for partition, parts in partitions:
            if id(parts[0][0]) in self._matrices:
                self.parts[id(partition)] = [part for _, part in parts]

    @torch.no_grad()
    def update(self) -> None:
        groups = self.param_groups
        for group in groups:
            for held in group["params"] if group["use_muon"] else ():
                if held.grad is not None:
                    self._move(held, group)
        self.param_groups = [group for group in groups if not group["use_muon"]]
        super().update()
        self.param_groups = groups

    def _move(self, held: torch.Tensor, group: dict[str, Any]) -> None:
        """Update a matrix or a partition of matrices. The gradient's memory is reused."""
        gradient: Any = held.grad
        state = self.state[held]
        if MOMENTUM not in state:
            state[MOMENTUM] = torch.zeros_like(held)
        momentum = state[MOMENTUM]
        momentum.lerp_(gradient, 1 - group["momentum"])
        gradient.lerp_(momentum, group["momentum"])
        if id(held) in self.parts:
            _orthogonalize_parts(gradient, self.parts[id(held)])
        else:
            gradient.copy_(_orthogonal(gradient))
        held.mul_(1 - group["lr"] * group["weight_decay"]).add_(gradient, alpha=-group["lr"])


def _orthogonalize_parts(flat: torch.Tensor, parts: list[MatrixPart]) -> None:
    """Orthogonalize the matrices whose parts are in `flat`. Collective: each rank computes one matrix at a time.

    Only one part has an entry that is not zero, so that the sum over ranks is exact.
    """
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    device = get_accelerator().current_device_name()
    by_size = sorted(parts, key=lambda part: part.shape.numel())
    for place in range(0, len(by_size), ranks):
        batch = by_size[place : place + ranks]
        rows = torch.zeros(ranks, batch[-1].shape.numel(), device=device)
        for row, part in zip(rows, batch, strict=False):
            row[part.first : part.first + part.count] = flat[part.start : part.start + part.count]
        own = torch.empty_like(rows[0])
        torch.distributed.reduce_scatter_tensor(own, rows.view(-1))
        if rank < len(batch):
            shape = batch[rank].shape
            own[: shape.numel()] = _orthogonal(own[: shape.numel()].view(shape)).flatten()
        torch.distributed.all_gather_into_tensor(rows.view(-1), own)
        for row, part in zip(rows, batch, strict=False):
            flat[part.start : part.start + part.count] = row[part.first : part.first + part.count]


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    rows, columns = matrix.shape
    made: torch.Tensor = zeropower_via_gram_newtonschulz(matrix, steps=NEWTON_SCHULZ_STEPS)
    return made * max(1.0, rows / columns) ** 0.5

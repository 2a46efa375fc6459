"""Muon on whole matrices and on ZeRO's partitions, after the gradient is clipped."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.muon import original_muon

from temper.learner.config import OptimConfig
from temper.learner.engine.optimizer import GuardedAdamW, MatrixPart
from temper.learner.engine.optimizer_state import MOMENTUM

NEWTON_SCHULZ_STEPS = 5
if (
    get_accelerator().device_name() == "cpu"
):  # else runs differ by CPU, and one rank from two, since some CPUs have float16
    original_muon.ns_compute_dtype = lambda method="gram": torch.float32


class GuardedMuon(GuardedAdamW):
    """Muon for the groups with `use_muon`, AdamW for the others. At stage 0 both are behind the guard.

    Above stage 0, DeepSpeed's Muon clips the update instead of the gradient, except at stage 1 in bfloat16. Here DeepSpeed
    clips the gradient, as for AdamW.

    Muon: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
    """

    def __init__(self, groups: list[dict[str, Any]], *, optim: OptimConfig, guard: bool) -> None:
        by_muon = [group for group in groups if group["use_muon"]]
        shapes: dict[int, torch.Size] = {
            id(weights): shape
            for group in by_muon
            for weights, shape in zip(group["params"], group.pop("shapes"), strict=True)
        }
        super().__init__(groups, optim=optim, guard=guard)
        self.matrices = shapes
        self._counts: dict[int, list[list[int]]] = {}
        """Each rank's entries of each part, by the id of the partition."""
        # DeepSpeed compiles Newton-Schulz, which needs a compiler and costs more than it saves. This holds for the process, in
        # which nothing else is compiled.
        torch.compiler.set_stance("force_eager")

    def set_parts(self, partitions: Iterable[tuple[torch.Tensor, list[Any], list[MatrixPart]]]) -> None:
        """Store this rank's parts of each Muon partition. ZeRO replaces a group's parameters by its partitions."""
        for partition, parameters, parts in partitions:
            if id(parameters[0]) in self.matrices:
                shapes = [self.matrices[id(parameter)] for parameter in parameters]
                self.parts[id(partition)] = [
                    replace(part, shape=shape) for part, shape in zip(parts, shapes, strict=True)
                ]
                counts: list[list[int]] = [[] for _ in range(torch.distributed.get_world_size())]
                torch.distributed.all_gather_object(counts, [part.count for part in parts])
                self._counts[id(partition)] = counts

    @torch.no_grad()
    def update(self) -> None:
        groups = self.param_groups
        for group in groups:
            for weights in group["params"] if group["use_muon"] else ():
                if weights.grad is not None:
                    self._update_matrices(weights, group)
        self.param_groups = [group for group in groups if not group["use_muon"]]
        try:
            super().update()
        finally:
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
            _orthogonalize_parts(gradient, self.parts[id(weights)], self._counts[id(weights)])
        else:
            matrices = gradient.view(self.matrices[id(weights)])
            matrices.copy_(_orthogonalize(matrices))
        weights.mul_(1 - group["lr"] * group["weight_decay"]).add_(gradient, alpha=-group["lr"])


def _orthogonalize_parts(flat: torch.Tensor, parts: list[MatrixPart], counts: list[list[int]]) -> None:
    """Orthogonalize the matrices whose parts are in `flat`. Collective: each rank gathers and computes one part of a batch.

    A part is of one matrix or of a stack of experts. `counts` has each rank's number of entries of each part, in the order of
    the ranks.
    """
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    device = get_accelerator().current_device_name()
    by_size = sorted(range(len(parts)), key=lambda place: parts[place].shape.numel())
    for first in range(0, len(by_size), ranks):
        batch = by_size[first : first + ranks]
        slices = [slice(parts[place].start, parts[place].start + parts[place].count) for place in batch]
        sent = [parts[place].count for place in batch] + [0] * (ranks - len(batch))
        mine = batch[rank] if rank < len(batch) else None
        received = [0 if mine is None else given[mine] for given in counts]
        pieces = torch.cat([flat[one] for one in slices]).to(device)
        matrix = torch.empty(sum(received), device=device)
        torch.distributed.all_to_all_single(matrix, pieces, received, sent)
        if mine is not None:
            matrix = _orthogonalize(matrix.view(parts[mine].shape)).flatten()
        torch.distributed.all_to_all_single(pieces, matrix.contiguous(), sent, received)
        for one, piece in zip(slices, pieces.split(sent[: len(batch)]), strict=True):
            flat[one] = piece


def _orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Orthogonalize a matrix, or each of a stack. DeepSpeed computes and returns float16 on a GPU."""
    *_, rows, columns = matrices.shape
    update: torch.Tensor = original_muon.zeropower_via_gram_newtonschulz(matrices, steps=NEWTON_SCHULZ_STEPS)
    return update.to(matrices.dtype) * max(1.0, rows / columns) ** 0.5

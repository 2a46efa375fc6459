"""Groups of neighbouring ranks, which share sequences or experts, and exchange tokens for them."""

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Self

import torch
import torch.distributed


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """This rank's place in its group."""

    process_group: Any
    rank: int
    size: int

    @classmethod
    def open(cls, size: int, *, timeout_s: float) -> Self | None:
        """Return this rank's group, or None if each rank is alone. The first call of a size is collective."""
        if size == 1:
            return None
        return cls(process_group=_create(size, timeout_s), rank=torch.distributed.get_rank() % size, size=size)

    def exchange(
        self, rows: torch.Tensor, *, sent: list[int] | None = None, received: list[int] | None = None
    ) -> torch.Tensor:
        """Send rows, ordered by the rank that they go to, and return those that come, in the order of the ranks.

        `sent` and `received` are the numbers of rows to and from each rank; None exchanges equal ones. Gradients travel back.
        """
        exchanged: torch.Tensor = _AllToAll.apply(rows, self.process_group, sent, received)
        return exchanged


@cache
def _create(size: int, timeout_s: float) -> Any:
    return torch.distributed.new_subgroups(size, timeout=timedelta(seconds=timeout_s))[0]


class _AllToAll(torch.autograd.Function):
    """See `RankGroup.exchange`."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, group: Any, sent: list[int] | None, received: list[int] | None
    ) -> torch.Tensor:
        ctx.back = group, received, sent
        output = rows.new_empty(len(rows) if received is None else sum(received), *rows.shape[1:])
        torch.distributed.all_to_all_single(output, rows.contiguous(), received, sent, group=group)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _AllToAll.apply(gradients[0], *ctx.back), None, None, None

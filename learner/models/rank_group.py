"""Groups of neighbouring ranks, which share sequences or experts."""

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Self

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


@cache
def _create(size: int, timeout_s: float) -> Any:
    return torch.distributed.new_subgroups(size, timeout=timedelta(seconds=timeout_s))[0]

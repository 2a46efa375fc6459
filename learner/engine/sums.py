"""Sums that the ranks make together, and the means that metrics are."""

import torch
import torch.distributed


def sum_over_ranks(totals: dict[str, torch.Tensor]) -> dict[str, float]:
    """The sums of all ranks added up. Every rank has the same names, in the same order."""
    values = torch.stack(list(totals.values()))
    if torch.cuda.is_available():
        values = values.cuda()  # nccl moves device memory only
    torch.distributed.all_reduce(values)
    return dict(zip(totals, values.tolist(), strict=True))


def means(sums: dict[str, float], *, denominator: float) -> dict[str, float]:
    """The loss over the batch's denominator, everything else over the weight of its tokens."""
    weight = sums.pop("weight")
    return {name: value / (denominator if name == "loss" else weight) for name, value in sums.items()}

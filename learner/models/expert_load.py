"""How evenly tokens are spread over experts, as pure functions of counts.

Suffixes: `_LE` one entry per expert layer and expert: how often a token went to it.
"""

import math

import torch


def load_max(counts_LE: torch.Tensor) -> float:
    """The share that the busiest expert of any layer has of its layer's choices, times the experts: 1 is balanced."""
    return float((_shares(counts_LE) * counts_LE.shape[1]).max())


def unused(counts_LE: torch.Tensor) -> float:
    """The share of all experts that no token went to."""
    return float((counts_LE == 0).double().mean())


def load_entropy(counts_LE: torch.Tensor) -> float:
    """The entropy of a layer's load over that of an even one, mean over layers: 1 is balanced, 0 a single expert."""
    shares_LE = _shares(counts_LE)
    entropies_L = -torch.special.xlogy(shares_LE, shares_LE).sum(-1)
    return float(entropies_L.mean()) / math.log(counts_LE.shape[1])


def _shares(counts_LE: torch.Tensor) -> torch.Tensor:
    return counts_LE.double() / counts_LE.sum(-1, keepdim=True).clamp(min=1)

"""Ratios of probabilities from their logarithms, and their means over sequences.

Suffixes: `_BT` one entry per sequence and token, `_B1` per sequence, kept as a column that spreads over its tokens.
"""

import torch

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +- this before they are exponentiated."""


def bounded_exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return the ratio of two probabilities from the difference of their logarithms."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_means(values_BT: torch.Tensor, trained_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean over the trained tokens of each sequence, shape (B, 1); 0 for a sequence without any."""
    counted_BT = trained_BT.to(values_BT.dtype)
    return (values_BT * counted_BT).sum(-1, keepdim=True) / counted_BT.sum(-1, keepdim=True).clamp(min=1.0)

"""Corrections for the gap between the trainer and the engine that sampled. Pure; each can be on or off by itself.

Suffixes: `_BT` one entry per sequence and token, `_B1` per sequence. pi is the trainer's probability of a token, mu the
engine's, w = pi / mu. A log-probability that is NaN is hidden by none of these rules: where it counts, loss or metrics show it.
"""

from dataclasses import dataclass

import torch

from learner.losses.ratios import bounded_exp, sequence_means


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Which corrections are made. What is 0 or None is off."""

    cap: float = 0.0
    floor: float = 0.0
    token_range: tuple[float, float] | None = None
    sequence_range: tuple[float, float] | None = None
    error_guard: float = 0.0
    negative_guard: float = 0.0


def token_factors(
    w_BT: torch.Tensor, correction: Correction, *, in_ratio: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what each token's loss is multiplied by, and where a bound of it took hold.

    That is w held between `floor` and `cap`, w itself where there is only a `token_range`, 1 where there is neither or where w
    is already `in_ratio`. Outside of the `token_range` it is 0.

    Held between bounds: Espeholt et al., "IMPALA", section 4.1, 2018; for the gap between trainer and engine: Yao et
    al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025. Range: Zhao et al., "Small Leak
    Can Sink a Great Ship -- Boost RL Training on MoE with IcePop", 2025.
    """
    weighs = not in_ratio and (correction.cap > 0 or correction.token_range is not None)
    whole_BT = w_BT if weighs else torch.ones_like(w_BT)
    factors_BT = whole_BT.clamp(correction.floor, correction.cap) if weighs and correction.cap else whole_BT
    factors_BT = inside_range(factors_BT, w_BT, correction.token_range)
    return factors_BT, factors_BT != whole_BT


def inside_range(values_BT: torch.Tensor, w_BT: torch.Tensor, bounds: tuple[float, float] | None) -> torch.Tensor:
    """Return the values, with 0 where w (per token, or per sequence as a column) lies outside of the bounds."""
    if bounds is None:
        return values_BT
    return torch.where((w_BT < bounds[0]) | (w_BT > bounds[1]), 0.0, values_BT)


def kept_weights(
    weights_BT: torch.Tensor, gap_BT: torch.Tensor, advantages_BT: torch.Tensor, correction: Correction
) -> torch.Tensor:
    """Return `weights_BT`, with 0 for the sequences that are left out, as judged by their `gap_BT` = log w of trained tokens.

    `error_guard`: those whose exp(mean |log w|) is above it.
    `sequence_range`: those whose exp(mean log w), the geometric mean of w, lies outside of it; masks by a sequence's
    ratio: Liu et al., "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch", 2025.
    `negative_guard`: those with A < 0 whose mean of log mu - log pi is above it; where advantages differ within a
    sequence, its tokens with A < 0. DeepSeek-AI, "DeepSeek-V3.2", section 3.1 (off-policy sequence masking), 2025.
    """
    trained_BT = weights_BT > 0
    kept_BT = weights_BT
    if correction.error_guard:
        error_B1 = bounded_exp(sequence_means(gap_BT.abs(), trained_BT))
        kept_BT = torch.where(error_B1 > correction.error_guard, 0.0, kept_BT)
    mean_B1 = sequence_means(gap_BT, trained_BT)
    kept_BT = inside_range(kept_BT, bounded_exp(mean_B1), correction.sequence_range)
    if correction.negative_guard:
        kept_BT = torch.where((advantages_BT < 0) & (-mean_B1 > correction.negative_guard), 0.0, kept_BT)
    return kept_BT

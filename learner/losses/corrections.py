"""Corrections for the train-inference mismatch between trainer and engine. Pure. Each can be on or off.

Suffixes: `_BT` one entry per sequence and token, `_B1` per sequence. pi is the trainer's probability of a token, mu the
engine's, w = pi / mu. No rule hides a NaN log-probability: it shows in loss or metrics if the token counts.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch

from temper.learner.losses.surrogates import bounded_exp, sequence_means


class MaskReason(IntEnum):
    """Why a trained token carries no loss, the first of several reasons."""

    NONE = 0  # the token carries loss
    ERROR_GUARD = 1  # its sequence differs from the engine's by more than the guard
    SEQUENCE_RANGE = 2  # the geometric mean of w over its sequence is outside the range
    NEGATIVE_GUARD = 3  # its advantage is negative, and its sequence has become too unlikely
    TOKEN_RANGE = 4  # its w is outside the range


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    cap: float = 0.0
    floor: float = 0.0
    token_range: tuple[float, float] | None = None
    sequence_range: tuple[float, float] | None = None
    error_guard: float = 0.0
    negative_guard: float = 0.0


def token_factors(
    w_BT: torch.Tensor, correction: Correction, *, in_ratio: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss factor of each token, and where a bound changed it.

    The factor is w clamped to `floor` and `cap`, w itself with only a `token_range`, and 1 with neither or if w is already
    `in_ratio`. Outside the `token_range` it is 0.

    Clamped weights: Espeholt et al., "IMPALA", section 4.1, 2018; for the mismatch: Yao et al., "Your Efficient RL Framework
    Secretly Brings You Off-Policy RL Training", 2025. Range: Zhao et al., "Small Leak Can Sink a Great Ship -- Boost RL
    Training on MoE with IcePop", 2025.
    """
    weighs = not in_ratio and (correction.cap > 0 or correction.token_range is not None)
    whole_BT = w_BT if weighs else torch.ones_like(w_BT)
    factors_BT = whole_BT.clamp(correction.floor, correction.cap) if weighs and correction.cap else whole_BT
    factors_BT = inside_range(factors_BT, w_BT, correction.token_range)
    return factors_BT, factors_BT != whole_BT


def inside_range(values_BT: torch.Tensor, w_BT: torch.Tensor, bounds: tuple[float, float] | None) -> torch.Tensor:
    """Return the values, set to 0 if w (per token, or per sequence as a column) is outside the bounds."""
    return values_BT if bounds is None else torch.where(_outside(w_BT, bounds), 0.0, values_BT)


def _outside(w_BT: torch.Tensor, bounds: tuple[float, float]) -> torch.Tensor:
    return (w_BT < bounds[0]) | (w_BT > bounds[1])


def mask_reasons(
    trained_BT: torch.Tensor,
    log_w_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    correction: Correction,
    *,
    current_log_w_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the `MaskReason` of each trained token, as int8. `log_w_BT` is log w of trained tokens.

    `current_log_w_BT` is log w of the current policy, which differs from pi_old's after the first update of a batch. None
    takes `log_w_BT`.

    `error_guard` masks sequences whose exp(mean |log w|) is above it. `sequence_range` masks sequences whose geometric mean
    of w is outside: Liu et al., "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch",
    2025. `negative_guard` masks tokens with A < 0 in sequences whose mean of log mu - log pi, with the current pi, is above
    it: DeepSeek-AI, "DeepSeek-V3.2", section 3.1 (off-policy sequence masking), 2025.
    """
    masks: list[tuple[MaskReason, torch.Tensor]] = []
    if correction.error_guard:
        error_B1 = bounded_exp(sequence_means(log_w_BT.abs(), trained_BT))
        masks.append((MaskReason.ERROR_GUARD, error_B1 > correction.error_guard))
    if correction.sequence_range is not None:
        mean_B1 = sequence_means(log_w_BT, trained_BT)
        masks.append((MaskReason.SEQUENCE_RANGE, _outside(bounded_exp(mean_B1), correction.sequence_range)))
    if correction.negative_guard:
        moved_B1 = -sequence_means(log_w_BT if current_log_w_BT is None else current_log_w_BT, trained_BT)
        masks.append((MaskReason.NEGATIVE_GUARD, (advantages_BT < 0) & (moved_B1 > correction.negative_guard)))
    if correction.token_range is not None:
        masks.append((MaskReason.TOKEN_RANGE, _outside(bounded_exp(log_w_BT), correction.token_range)))
    reasons_BT = torch.zeros_like(log_w_BT, dtype=torch.int8)
    for reason, masked_BT in reversed(masks):
        reasons_BT = torch.where(masked_BT & trained_BT, int(reason), reasons_BT)
    return reasons_BT


def mask_sequences(weights_BT: torch.Tensor, reasons_BT: torch.Tensor) -> torch.Tensor:
    """Return `weights_BT`, set to 0 for masked sequences. `token_factors` masks single tokens."""
    kept_BT = (reasons_BT == MaskReason.NONE) | (reasons_BT == MaskReason.TOKEN_RANGE)
    return torch.where(kept_BT, weights_BT, 0.0)

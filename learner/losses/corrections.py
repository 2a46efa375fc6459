"""Corrections for the gap between the trainer and the engine that sampled. Pure; each can be on or off by itself.

Suffixes: `_BT` one entry per sequence and token, `_B1` per sequence. pi is the trainer's probability of a token, mu the
engine's, w = pi / mu. A log-probability that is NaN is hidden by none of these rules: where it counts, loss or metrics show it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import torch

from temper.learner.losses.surrogates import bounded_exp, sequence_means


class MaskReason(IntEnum):
    """Why a trained token carries no loss; of several reasons the first."""

    NONE = 0  # the token carries loss
    ERROR_GUARD = 1  # its sequence is further from what the engine computed than the guard allows
    SEQUENCE_RANGE = 2  # the geometric mean of w over its sequence lies outside of the range
    NEGATIVE_GUARD = 3  # its advantage is negative, and its sequence has become too unlikely
    TOKEN_RANGE = 4  # its own w lies outside of the range


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
    return values_BT if bounds is None else torch.where(_outside(w_BT, bounds), 0.0, values_BT)


def _outside(w_BT: torch.Tensor, bounds: tuple[float, float]) -> torch.Tensor:
    return (w_BT < bounds[0]) | (w_BT > bounds[1])


def masked_weights(
    weights_BT: torch.Tensor,
    log_w_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    correction: Correction,
    *,
    current_log_w_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `weights_BT`, with 0 for the sequences that are left out, as judged by their `log_w_BT` = log w of trained tokens.

    `current_log_w_BT` is the log w of the current policy, which differs from pi_old's after the first update of a batch.
    None takes `log_w_BT`.

    `error_guard`: those whose exp(mean |log w|) is above it.
    `sequence_range`: those whose exp(mean log w), the geometric mean of w, lies outside of it; masks by a sequence's
    ratio: Liu et al., "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch", 2025.
    `negative_guard`: those with A < 0 whose mean of log mu - log pi, of the current pi, is above it. If advantages differ
    within a sequence, its tokens with A < 0. DeepSeek-AI, "DeepSeek-V3.2", section 3.1 (off-policy sequence masking), 2025.
    """
    masked_weights_BT = weights_BT
    for _, masked_BT in _sequence_masks(
        weights_BT > 0, log_w_BT, advantages_BT, correction, current_log_w_BT=current_log_w_BT
    ):
        masked_weights_BT = torch.where(masked_BT, 0.0, masked_weights_BT)
    return masked_weights_BT


def mask_reasons(
    trained_BT: torch.Tensor,
    log_w_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    correction: Correction,
    *,
    current_log_w_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return for each trained token the `MaskReason` that `masked_weights` or the `token_range` makes of it, as int8."""
    masks = list(_sequence_masks(trained_BT, log_w_BT, advantages_BT, correction, current_log_w_BT=current_log_w_BT))
    if correction.token_range is not None:
        masks.append((MaskReason.TOKEN_RANGE, _outside(bounded_exp(log_w_BT), correction.token_range)))
    reasons_BT = torch.zeros_like(log_w_BT, dtype=torch.int8)
    for reason, masked_BT in reversed(masks):
        reasons_BT = torch.where(masked_BT & trained_BT, int(reason), reasons_BT)
    return reasons_BT


def _sequence_masks(
    trained_BT: torch.Tensor,
    log_w_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    correction: Correction,
    *,
    current_log_w_BT: torch.Tensor | None,
) -> Iterator[tuple[MaskReason, torch.Tensor]]:
    """Yield each rule of `masked_weights` that is on, with what it leaves out."""
    if correction.error_guard:
        error_B1 = bounded_exp(sequence_means(log_w_BT.abs(), trained_BT))
        yield MaskReason.ERROR_GUARD, error_B1 > correction.error_guard
    if correction.sequence_range is not None:
        mean_B1 = sequence_means(log_w_BT, trained_BT)
        yield MaskReason.SEQUENCE_RANGE, _outside(bounded_exp(mean_B1), correction.sequence_range)
    if correction.negative_guard:
        moved_B1 = -sequence_means(log_w_BT if current_log_w_BT is None else current_log_w_BT, trained_BT)
        yield MaskReason.NEGATIVE_GUARD, (advantages_BT < 0) & (moved_B1 > correction.negative_guard)

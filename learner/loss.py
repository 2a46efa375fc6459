"""The losses, as pure functions of tensors. Each returns *sums*: the caller divides by the whole batch's denominator.

Suffixes: `_B` one entry per sequence, `_BT` per sequence and token, `_BTV` per vocabulary entry too. `logprobs_BT` are
the trainer's log-probabilities pi, `behaviour_BT` those of the rollout engine mu, `weights_BT` what a token counts for
(0: untrained or padding). Entries where the weight is 0 are never read, they may be NaN.
"""

from dataclasses import dataclass

import torch

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +- this before they are exponentiated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A differentiable sum over tokens, and sums of what is worth watching (a mean is `sums[x] / sums["weight"]`)."""

    total: torch.Tensor
    sums: dict[str, torch.Tensor]


def token_logprobs(logits_BTV: torch.Tensor, ids_BT: torch.Tensor) -> torch.Tensor:
    """Log-probability of each token given those before it, float32, shape (B, T); 0 for the first, which has none."""
    logits = logits_BTV[:, :-1].float()
    targets = ids_BT[:, 1:]
    chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return torch.nn.functional.pad(chosen - logits.logsumexp(-1), (1, 0))


def nll_loss(logprobs_BT: torch.Tensor, weights_BT: torch.Tensor) -> Loss:
    """Negative log-likelihood of the trained tokens."""
    total = -(weights_BT * logprobs_BT).sum()
    return Loss(total=total, sums={"weight": weights_BT.sum(), "loss": total.detach()})


def policy_loss(
    logprobs_BT: torch.Tensor,
    weights_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    behaviour_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
    importance_cap: float = 2.0,
    importance_floor: float = 0.0,
    error_guard: float = 0.0,
    old_BT: torch.Tensor | None = None,
) -> Loss:
    """Clipped policy loss with truncated importance weights.

    Per token `sg(clip(w, floor, cap)) * -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`, where r = pi / pi_old is
    the policy ratio and w = pi_old / mu corrects for what the engine computes differently or with older weights.
    Without `old_BT`, pi_old is pi itself (r = 1 with a gradient), which is right where a batch is used once.

    Clip: Schulman et al., "Proximal Policy Optimization Algorithms", eq. 7, 2017; asymmetric: Yu et al., "DAPO",
    eq. 10, 2025. Dual clip (for A < 0 at most `dual_clip` * |A|, off at 0): Ye et al., "Mastering Complex Control in
    MOBA Games with Deep Reinforcement Learning", eq. 4, 2020. Truncated weights: Espeholt et al., "IMPALA", section
    4.1, 2018; for the gap between trainer and engine: Yao et al., "Your Efficient RL Framework Secretly Brings You
    Off-Policy RL Training", 2025. Error guard: sequences whose exp(mean |log w|) exceeds it are left out.
    """
    trained_BT = weights_BT > 0
    logprobs_BT = torch.where(trained_BT, logprobs_BT, 0.0)
    old_BT = logprobs_BT.detach() if old_BT is None else torch.where(trained_BT, old_BT, 0.0)
    gap_BT = old_BT - torch.where(trained_BT, behaviour_BT, 0.0)
    kept_BT = guarded_weights(weights_BT, gap_BT, error_guard=error_guard)

    ratio_BT = _exp(logprobs_BT - old_BT)
    weight_BT = _exp(gap_BT)
    surrogate_BT = clipped_surrogate(
        ratio_BT, advantages_BT, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    truncated_BT = weight_BT.clamp(importance_floor, importance_cap)
    total = (kept_BT * truncated_BT * surrogate_BT).sum()
    clipped_BT = (surrogate_BT.detach() != -(ratio_BT.detach() * advantages_BT)).float()
    sums = {
        "weight": weights_BT.sum(),
        "loss": total.detach(),
        "entropy": -(weights_BT * logprobs_BT.detach()).sum(),  # mean surprise of sampled tokens: unbiased on-policy
        "ratio": (weights_BT * ratio_BT.detach()).sum(),
        "importance": (weights_BT * weight_BT).sum(),
        "importance_truncated": (weights_BT * (truncated_BT != weight_BT)).sum(),
        "logprob_gap": (weights_BT * gap_BT.abs()).sum(),
        "clipped": (weights_BT * clipped_BT).sum(),
        "guarded": (weights_BT - kept_BT).sum(),
        "advantage_abs": (weights_BT * advantages_BT.abs()).sum(),
    }
    return Loss(total=total, sums=sums)


def clipped_surrogate(
    ratio_BT: torch.Tensor, advantages_BT: torch.Tensor, *, clip_low: float, clip_high: float, dual_clip: float
) -> torch.Tensor:
    """The per-token loss before weights: PPO's clip, and for negative advantages the dual clip. See `policy_loss`."""
    unclipped_BT = ratio_BT * advantages_BT
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high) * advantages_BT
    objective_BT = torch.minimum(unclipped_BT, clipped_BT)
    if dual_clip:
        bounded_BT = torch.maximum(objective_BT, dual_clip * advantages_BT)
        objective_BT = torch.where(advantages_BT < 0, bounded_BT, objective_BT)
    return -objective_BT


def guarded_weights(weights_BT: torch.Tensor, gap_BT: torch.Tensor, *, error_guard: float) -> torch.Tensor:
    """`weights_BT` with those sequences zeroed whose exp(mean |gap|) over trained tokens is above `error_guard`."""
    if not error_guard:
        return weights_BT
    trained_BT = (weights_BT > 0).float()
    mean_B = (gap_BT.abs() * trained_BT).sum(-1) / trained_BT.sum(-1).clamp(min=1.0)
    dropped_B = (
        _exp(mean_B) > error_guard
    )  # NaN compares false: a broken log-probability reaches the loss and is counted
    return torch.where(dropped_B.unsqueeze(-1), 0.0, weights_BT)


def _exp(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()

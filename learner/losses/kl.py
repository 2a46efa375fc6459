"""Divergence from a reference policy or a teacher, estimated from sampled tokens. Pure functions of tensors.

Suffix: `_BT` one entry per sequence and token. In the formulas d = log pi_ref - log pi of a sampled token.
"""

from collections.abc import Callable

import torch

from temper.learner.losses.surrogates import MAX_LOG_RATIO


def k1(logprobs_BT: torch.Tensor, ref_BT: torch.Tensor) -> torch.Tensor:
    """Return -d: unbiased for KL(pi, pi_ref), of either sign. Schulman, "Approximating KL Divergence", 2020."""
    return -_log_ratio(logprobs_BT, ref_BT)


def k2(logprobs_BT: torch.Tensor, ref_BT: torch.Tensor) -> torch.Tensor:
    """Return d^2 / 2: biased, never negative. Schulman, "Approximating KL Divergence", 2020."""
    return _log_ratio(logprobs_BT, ref_BT).square() / 2


def k3(logprobs_BT: torch.Tensor, ref_BT: torch.Tensor) -> torch.Tensor:
    """Return exp(d) - d - 1: unbiased and never negative. Schulman, "Approximating KL Divergence", 2020.

    As a term of the loss: Shao et al., "DeepSeekMath", eq. 4, 2024.
    """
    d_BT = _log_ratio(logprobs_BT, ref_BT)
    return d_BT.exp() - d_BT - 1


ESTIMATES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""The functions by their names in the configuration."""


def penalised_advantages(
    advantages_BT: torch.Tensor, kl_BT: torch.Tensor, trained_BT: torch.Tensor, *, coefficient: float
) -> torch.Tensor:
    """Subtract the divergence from the advantages: `coefficient` times its sum from each token to the end.

    Over trained tokens, without discount and baseline. Hu et al., "REINFORCE++", 2025.
    """
    cost_BT = torch.where(trained_BT, kl_BT.detach(), 0.0)
    to_come_BT = cost_BT.flip(-1).cumsum(-1).flip(-1)
    return advantages_BT - coefficient * to_come_BT


def distillation_advantages(
    logprobs_BT: torch.Tensor, teacher_BT: torch.Tensor, *, clip: float = MAX_LOG_RATIO
) -> torch.Tensor:
    """Return log pi_teacher - log pi of each sampled token, clipped to +-`clip`, without gradient.

    The reverse divergence from a teacher, token by token. Gu et al., "MiniLLM: Knowledge Distillation of Large Language
    Models", 2024; as an advantage: Lu, "On-Policy Distillation", 2025.
    """
    return (teacher_BT - logprobs_BT).detach().clamp(-clip, clip)


def _log_ratio(logprobs_BT: torch.Tensor, ref_BT: torch.Tensor) -> torch.Tensor:
    return (ref_BT - logprobs_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

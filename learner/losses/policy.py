"""The losses, as pure functions of tensors. Each returns *sums*: the caller divides by the batch's denominator.

Suffix: `_BT` one entry per sequence and token. `logprobs_BT` are log-probabilities of the trainer (pi), `behaviour_BT` of
the rollout engine (mu), `ref_BT` of a reference policy. `weights_BT` are loss weights, 0 if untrained or padding. Entries of
weight 0 are never read and may be NaN.
"""

from dataclasses import dataclass, field, replace

import torch

from temper.learner.losses.config import KlEstimate, LossConfig
from temper.learner.losses.corrections import Correction, mask_reasons, mask_sequences, token_factors
from temper.learner.losses.kl import ESTIMATES, penalised_advantages
from temper.learner.losses.surrogates import Clip, Tokens, bounded_exp, surrogate_function


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTerms:
    """Per-token results of the loss, without gradients: pi_old, A, the loss factor (0 if masked) and its `MaskReason`.

    Entries of untrained tokens have no meaning.
    """

    old_BT: torch.Tensor
    advantages_BT: torch.Tensor
    factors_BT: torch.Tensor
    mask_reasons_BT: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A differentiable sum over tokens, and sums for metrics (a mean is `sums[x] / sums["weight"]`).

    `terms` are its per-token results if the answers were sampled.
    """

    total: torch.Tensor
    sums: dict[str, torch.Tensor]
    terms: TokenTerms | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KlPenalty:
    """The KL term: its estimate, its coefficient, and whether it applies to the reward."""

    estimate: KlEstimate = "k3"
    coefficient: float = 0.0
    in_reward: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTerms:
    """The terms of `policy_loss`. With `against_rollout` the policy ratio is pi / mu, not pi / pi_old."""

    surrogate: str = "ppo"
    clip: Clip = field(default_factory=lambda: Clip(low=0.2, high=0.28, dual=3.0))
    correction: Correction = field(default_factory=lambda: Correction(cap=2.0, error_guard=2.0))
    against_rollout: bool = False
    kl: KlPenalty = field(default_factory=KlPenalty)
    entropy_bonus: float = 0.0

    @classmethod
    def of(cls, config: LossConfig) -> "PolicyTerms":
        """Return the terms of a configuration, with the defaults of its surrogate.

        Normalised advantages that already include the divergence get no KL term.
        """
        low, high = config.clip
        coefficient = 0.0 if config.normalises_divergence else config.kl_coefficient
        return cls(
            surrogate=config.surrogate,
            clip=Clip(low=low, high=high, dual=config.dual),
            correction=Correction(
                cap=config.cap,
                floor=config.importance_floor,
                token_range=config.token_bounds,
                sequence_range=config.sequence_bounds,
                error_guard=config.error_guard,
                negative_guard=config.negative_guard,
            ),
            against_rollout=config.against_rollout,
            kl=KlPenalty(estimate=config.kl, coefficient=coefficient, in_reward=config.kl_in == "reward"),
            entropy_bonus=config.entropy_bonus,
        )


def nll_loss(logprobs_BT: torch.Tensor, weights_BT: torch.Tensor) -> Loss:
    """Return the negative log-likelihood of the trained tokens."""
    total = -(weights_BT * torch.where(weights_BT > 0, logprobs_BT, 0.0)).sum()
    return Loss(total=total, sums={"weight": weights_BT.sum(), "loss": total.detach()})


def policy_loss(
    logprobs_BT: torch.Tensor,
    weights_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    behaviour_BT: torch.Tensor,
    *,
    terms: PolicyTerms,
    old_BT: torch.Tensor | None = None,
    ref_BT: torch.Tensor | None = None,
    entropy_BT: torch.Tensor | None = None,
) -> Loss:
    """Return the policy surrogate, corrected for the engine's numerical differences and older weights.

    Per token `weight * factor * surrogate(r, A)`. r = pi / pi_old is the policy ratio (`surrogates`). w = pi_old / mu sets
    the factor of a token and masks sequences (`corrections`). Without `old_BT`, pi_old is pi itself (r = 1 with a gradient),
    which is correct for one update per batch. If r is taken against the rollout, only the masks of w apply.

    With `ref_BT` the divergence of pi from the reference is added to the loss of each trained token, or the divergence of
    pi_old is subtracted from the advantages. Masked tokens pay it too: DeepSeek-V3.2, section 3.1, masks the surrogate
    alone, since the divergence depends on neither A nor mu. With `entropy_BT` the entropy times its coefficient is
    subtracted from the loss: Schulman et al., "Proximal Policy Optimization Algorithms", eq. 9, 2017.
    """
    trained_BT = weights_BT > 0
    logprobs_BT = torch.where(trained_BT, logprobs_BT, 0.0)
    advantages_BT = torch.where(trained_BT, advantages_BT, 0.0)
    old_BT = logprobs_BT.detach() if old_BT is None else torch.where(trained_BT, old_BT, 0.0)
    kl = terms.kl
    kl_BT = None
    if ref_BT is not None:
        kl_BT = ESTIMATES[kl.estimate](old_BT if kl.in_reward else logprobs_BT, torch.where(trained_BT, ref_BT, 0.0))
        if kl.in_reward:
            advantages_BT = penalised_advantages(advantages_BT, kl_BT, trained_BT, coefficient=kl.coefficient)
    tokens = Tokens(logprobs_BT=logprobs_BT, old_BT=old_BT, advantages_BT=advantages_BT, trained_BT=trained_BT)
    total, sums, each = _corrected_surrogate(tokens, weights_BT, torch.where(trained_BT, behaviour_BT, 0.0), terms)
    if kl_BT is not None:
        divergence = (weights_BT * kl_BT).sum()
        sums["kl"] = divergence.detach()
        if not kl.in_reward:
            total = total + kl.coefficient * divergence
    if entropy_BT is not None:
        entropy = (weights_BT * torch.where(trained_BT, entropy_BT, 0.0)).sum()
        sums["policy_entropy"] = entropy.detach()
        total = total - terms.entropy_bonus * entropy
    return Loss(total=total, sums={"weight": weights_BT.sum(), "loss": total.detach()} | sums, terms=each)


def _corrected_surrogate(
    tokens: Tokens, weights_BT: torch.Tensor, behaviour_BT: torch.Tensor, terms: PolicyTerms
) -> tuple[torch.Tensor, dict[str, torch.Tensor], TokenTerms]:
    """Return the corrected surrogate summed over tokens, the sums for metrics, and the per-token terms."""
    log_w_BT = tokens.old_BT - behaviour_BT
    current_log_w_BT = tokens.logprobs_BT.detach() - behaviour_BT
    w_BT = bounded_exp(log_w_BT)
    reasons_BT = mask_reasons(
        tokens.trained_BT, log_w_BT, tokens.advantages_BT, terms.correction, current_log_w_BT=current_log_w_BT
    )
    masked_weights_BT = mask_sequences(weights_BT, reasons_BT)
    factors_BT, truncated_BT = token_factors(w_BT, terms.correction, in_ratio=terms.against_rollout)
    compared = replace(tokens, old_BT=behaviour_BT) if terms.against_rollout else tokens
    surrogate = surrogate_function(terms.surrogate)(compared, clip=terms.clip)
    sums = {
        "entropy": -(weights_BT * tokens.logprobs_BT.detach()).sum(),  # mean surprise of samples: unbiased on-policy
        "ratio": (weights_BT * surrogate.ratio_BT).sum(),
        "is_weight": (weights_BT * w_BT).sum(),
        "is_weight_truncated": (weights_BT * truncated_BT).sum(),
        "mismatch_abs": (weights_BT * log_w_BT.abs()).sum(),
        "clipped": (weights_BT * surrogate.clipped_BT).sum(),
        "guarded": (weights_BT - masked_weights_BT).sum(),
        "advantage_abs": (weights_BT * tokens.advantages_BT.abs()).sum(),
    }
    each = TokenTerms(
        old_BT=tokens.old_BT,
        advantages_BT=tokens.advantages_BT,
        factors_BT=torch.where(masked_weights_BT > 0, factors_BT, 0.0),
        mask_reasons_BT=reasons_BT,
    )
    return (masked_weights_BT * factors_BT * surrogate.loss_BT).sum(), sums, each

"""Surrogates of the policy objective: the loss of each token before weighting. Pure functions of tensors.

Suffixes: `_BT` one entry per sequence and token, `_B1` per sequence. In the formulas r = pi / pi_old is the policy ratio, A
the advantage and sg(.) stops the gradient.

Settings read the table of surrogates, so this file calls methods of tensors and does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol

from temper.learner.losses.custom_functions import call_on_trial, import_function, is_custom

if TYPE_CHECKING:
    import torch

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +- this before exponentiation."""


def bounded_exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return a probability ratio from its clamped logarithm."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_means(values_BT: torch.Tensor, trained_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean over the trained tokens of each sequence, shape (B, 1), 0 for a sequence without any."""
    counted_BT = trained_BT.to(values_BT.dtype)
    return (values_BT * counted_BT).sum(-1, keepdim=True) / counted_BT.sum(-1, keepdim=True).clamp(min=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The input of a surrogate: log pi, log pi_old, A, and the mask of trained tokens. Untrained entries are finite."""

    logprobs_BT: torch.Tensor
    old_BT: torch.Tensor
    advantages_BT: torch.Tensor
    trained_BT: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Bounds of the policy ratio: 1 - `low` and 1 + `high`. `dual` bounds it if A < 0 (0: off)."""

    low: float
    high: float
    dual: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """The loss of each token, its ratio, and where the ratio was clipped."""

    loss_BT: torch.Tensor
    ratio_BT: torch.Tensor
    clipped_BT: torch.Tensor


class SurrogateFunction(Protocol):
    def __call__(self, tokens: Tokens, *, clip: Clip) -> Surrogate: ...


def ppo(tokens: Tokens, *, clip: Clip) -> Surrogate:
    """Return -min(r A, clip(r, 1 - low, 1 + high) A), and for A < 0 at most `dual` * |A|.

    Schulman et al., "Proximal Policy Optimization Algorithms", eq. 7, 2017; bounds that differ: Yu et al., "DAPO",
    eq. 10, 2025. Dual clip: Ye et al., "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning",
    eq. 4, 2020.

    With pi_old the policy that starts the update, and each token weighted by pi_old / mu, this is the decoupled
    objective: Hilton et al., "Batch size-invariance for policy optimization", 2022; for asynchronous training: Fu et
    al., "AReaL", 2025.
    """
    ratio_BT = bounded_exp(tokens.logprobs_BT - tokens.old_BT)
    return _clipped(ratio_BT, tokens.advantages_BT, clip)


def gspo(tokens: Tokens, *, clip: Clip) -> Surrogate:
    """Return -min(s A, clip(s, 1 - low, 1 + high) A) with the sequence ratio s = exp(mean over t of log r).

    The token's ratio is sg(s) pi / sg(pi): s in value, with a separate gradient for each token. Zheng et al., "Group
    Sequence Policy Optimization", section 4, 2025.
    """
    sequence_B1 = bounded_exp(sequence_means(tokens.logprobs_BT - tokens.old_BT, tokens.trained_BT)).detach()
    ratio_BT = sequence_B1 * (tokens.logprobs_BT - tokens.logprobs_BT.detach()).exp()
    return _clipped(ratio_BT, tokens.advantages_BT, Clip(low=clip.low, high=clip.high))


def cispo(tokens: Tokens, *, clip: Clip) -> Surrogate:
    """Return -sg(clip(r, 1 - low, 1 + high)) A log pi: the weight of a token is bounded, its gradient is kept.

    MiniMax, "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", eq. 4 and 5, 2025.
    """
    ratio_BT = bounded_exp(tokens.logprobs_BT - tokens.old_BT).detach()
    bounded_BT = ratio_BT.clamp(1 - clip.low, 1 + clip.high)
    loss_BT = -bounded_BT * tokens.advantages_BT * tokens.logprobs_BT
    return Surrogate(loss_BT=loss_BT, ratio_BT=ratio_BT, clipped_BT=bounded_BT != ratio_BT)


def reinforce(tokens: Tokens, *, clip: Clip) -> Surrogate:
    """Return -r A without bounds. With pi_old = sg(pi) its gradient equals the gradient of -A log pi.

    Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning", 1992.
    """
    ratio_BT = bounded_exp(tokens.logprobs_BT - tokens.old_BT)
    loss_BT = -(ratio_BT * tokens.advantages_BT)
    return Surrogate(loss_BT=loss_BT, ratio_BT=ratio_BT.detach(), clipped_BT=tokens.trained_BT.new_zeros(loss_BT.shape))


def _clipped(ratio_BT: torch.Tensor, advantages_BT: torch.Tensor, clip: Clip) -> Surrogate:
    unclipped_BT = ratio_BT * advantages_BT
    objective_BT = unclipped_BT.minimum(ratio_BT.clamp(1 - clip.low, 1 + clip.high) * advantages_BT)
    if clip.dual:
        bounded_BT = objective_BT.maximum(clip.dual * advantages_BT)
        objective_BT = bounded_BT.where(advantages_BT < 0, objective_BT)
    clipped_BT = objective_BT.detach() != unclipped_BT.detach()
    return Surrogate(loss_BT=-objective_BT, ratio_BT=ratio_BT.detach(), clipped_BT=clipped_BT)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSurrogate:
    """A surrogate with its default clip."""

    function: SurrogateFunction
    clip: tuple[float, float]
    """Default `clip_low` and `clip_high`."""


SURROGATES = {
    "ppo": KnownSurrogate(function=ppo, clip=(0.2, 0.28)),
    "gspo": KnownSurrogate(function=gspo, clip=(3e-4, 4e-4)),
    "cispo": KnownSurrogate(function=cispo, clip=(1.0, 4.0)),
    "decoupled": KnownSurrogate(function=ppo, clip=(0.2, 0.28)),
    "reinforce": KnownSurrogate(function=reinforce, clip=(1.0, inf)),
}
"""By their names in the configuration. decoupled is ppo with a token weight in `policy_loss`."""


def surrogate_function(name: str) -> SurrogateFunction:
    return import_function("loss.surrogate", name) if is_custom(name) else SURROGATES[name].function


def check_surrogate(name: str) -> None:
    """Raise `ValueError` if a custom surrogate can't be imported, called or differentiated."""
    import torch

    logprobs_BT = torch.tensor([[-1.0, -2.0, -0.5], [-0.3, -1.5, -2.5]]).requires_grad_()
    tokens = Tokens(
        logprobs_BT=logprobs_BT,
        old_BT=logprobs_BT.detach() - 0.1,
        advantages_BT=torch.tensor([[1.0] * 3, [-1.0] * 3]),
        trained_BT=torch.ones(2, 3, dtype=torch.bool),
    )
    result = call_on_trial(
        "loss.surrogate", name, "function(tokens, clip=clip)", lambda f: f(tokens, clip=Clip(low=0.2, high=0.2))
    )
    wanted = (
        f"loss.surrogate={name!r} must return a temper.learner.losses.surrogates.Surrogate with tensors shaped like its "
        f"tokens"
    )
    if not isinstance(result, Surrogate):
        raise ValueError(f"{wanted}; it returned {type(result).__name__}")
    shapes = [tuple(tensor.shape) for tensor in (result.loss_BT, result.ratio_BT, result.clipped_BT)]
    if set(shapes) != {(2, 3)}:
        raise ValueError(f"{wanted}; for two sequences of three tokens the shapes were {shapes}")
    if not result.loss_BT.requires_grad or not result.loss_BT.isfinite().all():
        raise ValueError(f"{wanted}; its loss has no gradient or is not finite: {result.loss_BT.tolist()}")

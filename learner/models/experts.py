"""The routers of a model's expert layers: how they weigh a token's experts, and how balanced their load is.

Suffixes: `_NE` token of a pass and expert, `_NK` token and chosen expert, `_LE` expert layer and expert (token counts).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHTopkRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from temper.learner.config import LearnerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """A router with its number of experts. `router_weights` maps its logits and chosen experts to weights.

    The module returns logits (N, E), weights (N, K) and indices (N, K).
    """

    module: torch.nn.Module
    experts: int
    router_weights: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def sigmoid_router_weights(
    logits_NE: torch.Tensor, choices_NK: torch.Tensor, *, normalised: bool, scale: float
) -> torch.Tensor:
    """Return the sigmoids of the chosen experts' logits, divided by their sum if `normalised`, times `scale`.

    DeepSeek-AI, "DeepSeek-V3 Technical Report", eq. 13 to 15, 2024; Nemotron 3 has the same.
    """
    scores_NK = logits_NE.float().sigmoid().gather(1, choices_NK)
    if normalised:
        scores_NK = scores_NK / (scores_NK.sum(-1, keepdim=True) + 1e-20)
    return scores_NK * scale


def softmax_router_weights(logits_NE: torch.Tensor, choices_NK: torch.Tensor, *, normalised: bool) -> torch.Tensor:
    """Return the chosen experts' probabilities, divided by their sum if `normalised`.

    Shazeer et al., "Outrageously Large Neural Networks", section 2.1, 2017.
    """
    chosen_NK = logits_NE.softmax(-1, dtype=torch.float32).gather(1, choices_NK)
    if normalised:
        chosen_NK = chosen_NK / chosen_NK.sum(-1, keepdim=True)
    return chosen_NK.to(logits_NE.dtype)


def find_routers(model: PreTrainedModel) -> list[Router]:
    """Return the routers of a model in layer order; empty without expert layers of a known kind."""
    return [router for module in model.modules() if (router := _router(module)) is not None]


def prepare_routers(model: PreTrainedModel, learner: LearnerConfig) -> None:
    """Freeze the routers unless they are trained.

    Raises `ValueError` if the settings need routers that the model does not have.
    """
    routers = find_routers(model)
    for asked, setting, instead in (
        (not learner.train_router, "train_router=false", "train_router=true"),
        (learner.router_replay, "router_replay=true", "router_replay=false"),
        (learner.expert_parallel > 1, f"expert_parallel={learner.expert_parallel}", "expert_parallel=1"),
    ):
        if asked and not routers:
            raise ValueError(
                f"learner.{setting} with a model of type {model.config.model_type}: it has no known expert layers "
                f"(nemotron_h, qwen3_moe); set learner.{instead}"
            )
    if not learner.train_router:
        for router in routers:
            router.module.requires_grad_(False)


def load_max(counts_LE: torch.Tensor) -> float:
    """Return the largest load of an expert relative to an even load: 1 is balanced."""
    return float((_shares(counts_LE) * counts_LE.shape[1]).max())


def unused_share(counts_LE: torch.Tensor) -> float:
    """Return the share of experts without a token."""
    return float((counts_LE == 0).double().mean())


def load_entropy(counts_LE: torch.Tensor) -> float:
    """Return the entropy of a layer's load relative to an even load, mean over layers: 1 is balanced, 0 a single expert."""
    shares_LE = _shares(counts_LE)
    entropies_L = -torch.special.xlogy(shares_LE, shares_LE).sum(-1)
    return float(entropies_L.mean()) / math.log(counts_LE.shape[1])


def _shares(counts_LE: torch.Tensor) -> torch.Tensor:
    return counts_LE.double() / counts_LE.sum(-1, keepdim=True).clamp(min=1)


def _router(module: torch.nn.Module) -> Router | None:
    if isinstance(module, NemotronHTopkRouter):
        normalised, scale = bool(module.norm_topk_prob), float(module.routed_scaling_factor)
        return Router(
            module=module,
            experts=module.num_experts,
            router_weights=lambda logits, choices: sigmoid_router_weights(
                logits, choices, normalised=normalised, scale=scale
            ),
        )
    if isinstance(module, Qwen3MoeTopKRouter):
        plain = bool(module.norm_topk_prob)
        return Router(
            module=module,
            experts=module.num_experts,
            router_weights=lambda logits, choices: softmax_router_weights(logits, choices, normalised=plain),
        )
    return None

"""The expert layers of a model under training: their routers, how balanced their load is, and recorded choices replayed.

Ma et al., "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers", 2025 (R3). The trainer's
router uses the experts of the engine's router, weighted by its own scores, which carry its gradient. Suffixes: `_N` token of
a pass, `_NE` and expert, `_NK` and chosen expert, `_NLK` and expert layer too, `_LE` expert layer and expert (token counts).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHTopkRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from temper.learner.batches.pass_experts import PassExperts
from temper.learner.config import LearnerConfig
from temper.learner.models.packed_rows import packed_lengths
from temper.learner.models.sequence_parallel import SequenceGroup
from temper.rollout.expert_choices import UNRECORDED


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


Returned = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The output of a router: logits (N, E), weights (N, K), indices (N, K)."""


class ExpertReplay:
    """Hooks on the routers of one model. They read only router outputs, so ZeRO-3 gathers the usual parameters."""

    def __init__(
        self, model: PreTrainedModel, *, replay: bool, device: torch.device, group: SequenceGroup | None = None
    ) -> None:
        """With a `group` each rank's routers get the tokens of its shard."""
        self._group = group
        self._routers = find_routers(model)
        self._replay = replay
        self._device = device
        self._queued_passes: list[PassExperts] = []
        self._pass: _Pass | None = None
        self._experts = self._routers[0].experts if self._routers else 0
        self._totals = self._nothing()  # choices per expert, then rerouted and replayed choices
        if self._routers:
            model.register_forward_pre_hook(
                lambda _module, _inputs, named: self._next_pass(packed_lengths(named)),
                with_kwargs=True,
            )
        for number, router in enumerate(self._routers):
            router.module.register_forward_hook(self._hook(number, router))
        for layer in model.modules() if self._routers else ():
            if isinstance(layer, GradientCheckpointingLayer) and layer.gradient_checkpointing:
                layer._gradient_checkpointing_func = partial(self._run_in_its_pass, layer._gradient_checkpointing_func)

    def queue_passes(self, passes: Sequence[PassExperts]) -> None:
        """Set the next forward passes, in order. In passes after them the routers decide, and nothing is counted."""
        self._queued_passes = list(passes)

    def metrics(self) -> dict[str, float]:
        """Return the load since the last call, over all ranks. It is empty without expert layers or counted tokens. Collective.

        `experts/rerouted` is the share of replayed choices that the router would not have made.
        """
        if not self._routers:
            return {}
        totals, self._totals = self._totals, self._nothing()
        torch.distributed.all_reduce(totals)
        counts_LE = totals[:-2].view(len(self._routers), self._experts).cpu()
        moved, replayed = totals[-2:].tolist()
        if not counts_LE.any():
            return {}
        metrics = {
            "experts/load_max": load_max(counts_LE),
            "experts/unused": unused_share(counts_LE),
            "experts/load_entropy": load_entropy(counts_LE),
        }
        return metrics | ({"experts/rerouted": moved / max(replayed, 1.0)} if self._replay else {})

    def _nothing(self) -> torch.Tensor:
        return torch.zeros(len(self._routers) * self._experts + 2, dtype=torch.float64, device=self._device)

    def _next_pass(self, lengths: Sequence[int] | None) -> None:
        """Begin a pass, of the first tokens of each row if `lengths` are given."""
        coming = self._queued_passes.pop(0) if self._queued_passes else None
        self._pass = None
        if coming is not None:
            self._pass = _Pass.of(coming, lengths, replay=self._replay, device=self._device, group=self._group)
        if self._pass is not None and self._pass.experts_NLK is not None:
            layers = self._pass.experts_NLK.shape[1]
            if layers != len(self._routers):
                raise ValueError(
                    f"recorded experts have {layers} layers, the model has {len(self._routers)}; use the engine's model"
                )

    def _run_in_its_pass(self, recomputed: Callable[..., Any], layer: partial[Any], *inputs: Any) -> Any:
        """Run a layer that the backward pass runs again: in the same pass, without counting again."""
        coming = self._pass

        def run(*values: Any, **named: Any) -> Any:
            nonlocal coming
            before, self._pass = self._pass, coming
            coming = None if coming is None else replace(coming, samples_N=torch.zeros_like(coming.samples_N))
            try:
                return layer.func(*values, **named)
            finally:
                self._pass = before

        return recomputed(partial(run, **layer.keywords), *inputs)

    def _hook(self, layer: int, router: Router) -> Callable[[torch.nn.Module, Any, Returned], Returned | None]:
        def replay_choices(module: torch.nn.Module, inputs: Any, returned: Returned) -> Returned | None:
            running = self._pass
            if running is None:
                return None
            logits_NE, weights_NK, own_NK = returned
            if running.experts_NLK is None:
                self._count(layer, own_NK, running.samples_N)
                return None
            recorded_NK = running.experts_NLK[:, layer].long()
            chosen_NK = torch.where(recorded_NK < 0, own_NK, recorded_NK)
            self._count(layer, chosen_NK, running.samples_N)
            self._compare(recorded_NK, own_NK, running.samples_N)
            return logits_NE, router.router_weights(logits_NE, chosen_NK).to(weights_NK.dtype), chosen_NK

        return replay_choices

    def _count(self, layer: int, chosen_NK: torch.Tensor, samples_N: torch.Tensor) -> None:
        weights_NK = samples_N[:, None].expand_as(chosen_NK)
        self._totals.index_add_(0, layer * self._experts + chosen_NK.flatten(), weights_NK.flatten())

    def _compare(self, recorded_NK: torch.Tensor, own_NK: torch.Tensor, samples_N: torch.Tensor) -> None:
        weights_NK = samples_N[:, None] * (recorded_NK >= 0)
        moved_NK = ~(recorded_NK[:, :, None] == own_NK[:, None, :]).any(-1)
        self._totals[-2] += (weights_NK * moved_NK).sum()
        self._totals[-1] += weights_NK.sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """`PassExperts` as tensors, with rows concatenated."""

    samples_N: torch.Tensor
    experts_NLK: torch.Tensor | None

    @classmethod
    def of(
        cls,
        given: PassExperts,
        lengths: Sequence[int] | None,
        *,
        replay: bool,
        device: torch.device,
        group: SequenceGroup | None,
    ) -> "_Pass":
        samples_BT = torch.tensor(given.samples_BT, device=device)
        kept_BT = torch.ones_like(samples_BT, dtype=torch.bool)
        if lengths is not None:
            # without the padding behind the rows
            rows_B1 = torch.tensor(lengths[: len(samples_BT)], device=device)[:, None]
            kept_BT = torch.arange(samples_BT.shape[1], device=device) < rows_B1

        def flatten_shard(values_BT: torch.Tensor, *, fill: int) -> torch.Tensor:
            values_N = values_BT[kept_BT]
            if lengths is None or group is None:
                return values_N
            padding = values_N.new_full((sum(lengths) - len(values_N), *values_N.shape[1:]), fill)
            return group.take_shard(torch.cat([values_N, padding]))

        samples_N = flatten_shard(samples_BT, fill=0).double()
        if given.experts_BTLK is None or not replay:
            return cls(samples_N=samples_N, experts_NLK=None)
        experts_BTLK = torch.tensor(given.experts_BTLK, device=device)
        return cls(samples_N=samples_N, experts_NLK=flatten_shard(experts_BTLK, fill=UNRECORDED))

"""Expert parallelism: each rank of a group holds an equal share of every layer's experts. Tokens travel to their owners.

Each rank routes its own tokens. An all-to-all brings the hidden state of a token to the owner of each of its experts, and
another one brings back the outputs, which the token's rank weights and adds. Lepikhin et al., "GShard", 2020.

Suffixes: `_N` token of a rank's pass, `_K` chosen expert, `_S` token and chosen expert in the order of experts, `_M` token
from any rank and own expert, `_R` rank of the group, `_D` channel.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from temper.learner.models.rank_group import RankGroup

STACKS = NemotronHExperts, Qwen3MoeExperts
"""Modules whose parameters are stacks of experts, (experts, rows, columns)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroup(RankGroup):
    """The ranks that share the experts."""

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        """Return a whole stack from each rank's own experts."""
        whole = own.new_empty(len(own) * self.size, *own.shape[1:])
        torch.distributed.all_gather_into_tensor(whole, own.contiguous(), group=self.process_group)
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnExperts:
    """The part of a stack that this rank holds: its first expert, and the shape of the whole stack."""

    first: int
    shape: torch.Size


def own_experts(parameter: torch.nn.Parameter) -> OwnExperts | None:
    """Return the part of a stack that this parameter is, or None if the parameter is whole."""
    own: OwnExperts | None = vars(parameter).get("own_experts")
    return own


def keep_own_experts(parameter: torch.nn.Parameter, group: ExpertGroup) -> None:
    """Cut a whole stack to the experts of this rank. Raises `ValueError` if ranks cannot share them evenly."""
    count = len(parameter)
    if count % group.size:
        raise ValueError(
            f"learner.expert_parallel={group.size} with a model of {count} experts a layer: ranks share experts evenly; set a "
            f"divisor of {count}"
        )
    own: Any = parameter
    own.own_experts = OwnExperts(first=count // group.size * group.rank, shape=parameter.shape)
    parameter.data = parameter.data.chunk(group.size)[group.rank].clone()  # frees the rest


def exchange_tokens(model: PreTrainedModel, group: ExpertGroup) -> None:
    """Make expert layers with cut stacks send tokens to the owners of experts. Each pass is then collective."""
    for module in model.modules():
        if isinstance(module, STACKS):
            module.num_experts = len(module.down_proj)
            module.forward = partial(_forward_over_ranks, module, group)


def _forward_over_ranks(
    experts: Any, group: ExpertGroup, hidden_ND: torch.Tensor, chosen_NK: torch.Tensor, weights_NK: torch.Tensor
) -> torch.Tensor:
    """Return the weighted sum of each token's experts, (N, D), computed by their owners."""
    chosen_S, order_S = chosen_NK.flatten().sort(stable=True)
    sent_R = torch.bincount(chosen_S // experts.num_experts, minlength=group.size)
    received_R = torch.empty_like(sent_R)
    torch.distributed.all_to_all_single(received_R, sent_R, group=group.process_group)
    sent, received = torch.stack([sent_R, received_R]).tolist()
    hidden_MD = group.exchange(hidden_ND[order_S // chosen_NK.shape[1]], sent=sent, received=received)
    chosen_M = group.exchange(chosen_S, sent=sent, received=received) % experts.num_experts
    count = len(hidden_MD)
    if not count:  # a row of zeros, so that the stacks have a gradient on every rank
        hidden_MD, chosen_M = functional.pad(hidden_MD, (0, 0, 0, 1)), functional.pad(chosen_M, (0, 1))
    ones_M1 = hidden_MD.new_ones(len(hidden_MD), 1)
    output_MD = type(experts).forward(experts, hidden_MD, chosen_M[:, None], ones_M1)[:count]
    output_SD = group.exchange(output_MD, sent=received, received=sent)
    output_NKD = output_SD[order_S.argsort()].unflatten(0, chosen_NK.shape)
    return (output_NKD * weights_NK[..., None]).sum(1).to(hidden_ND.dtype)

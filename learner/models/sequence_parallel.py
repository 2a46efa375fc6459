"""Sequence parallelism by heads: neighbouring ranks train one micro-batch, each on a contiguous shard of its tokens.

Attention, and the convolution and scan of a Mamba-2 layer, mix tokens. An all-to-all before them turns a shard of the tokens
with all heads into all tokens with a share of the heads. Another one behind them turns it back. So no state passes between
ranks, and each kernel sees whole sequences. All other layers run on the shard. Jacobs et al., "DeepSpeed Ulysses", 2023.

Suffixes: `_N` token of the pass, `_n` token of a rank's shard, `_C` channel (heads times their width), `_c` channel of a
rank's heads.
"""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMamba2Mixer

from temper.learner.models.rank_group import RankGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGroup(RankGroup):
    """The ranks that share a micro-batch."""

    def take_shard(self, values_N: torch.Tensor, *, dim: int = 0) -> torch.Tensor:
        """Return the shard of this rank. The tokens are a multiple of the ranks."""
        return values_N.chunk(self.size, dim=dim)[self.rank]

    def gather(self, values_n: torch.Tensor) -> torch.Tensor:
        """Return the values of all tokens, equal on each rank.

        The backward pass takes this rank's part of the gradient, because each rank computes the same loss from them.
        """
        joined_N: torch.Tensor = _AllGather.apply(values_n, self)
        return joined_N

    def to_heads(self, *parts_nC: torch.Tensor) -> torch.Tensor:
        """Turn tensors (n, C), whose channels are ordered by heads, into one (N, c) with this rank's heads of each."""
        blocks = [part.reshape(len(part), self.size, -1) for part in parts_nC]
        return self.exchange(torch.cat(blocks, dim=-1).transpose(0, 1)).flatten(0, 1)

    def from_heads(self, values_Nc: torch.Tensor) -> torch.Tensor:
        """Turn (N, c), for this rank's heads, into (n, C)."""
        return self.exchange(values_Nc.reshape(self.size, -1, values_Nc.shape[-1])).transpose(0, 1).flatten(1)

    def take_heads(self, parameter: torch.Tensor, *sizes: int) -> torch.Tensor:
        """Return the entries of this rank's heads, of parts of these sizes."""
        return torch.cat([part.chunk(self.size)[self.rank] for part in parameter.split(sizes)])


def require_divisible(config: PreTrainedConfig, *, size: int) -> None:
    """Raise `ValueError` if so many ranks cannot share the heads of a model evenly. Few key-value heads are repeated."""
    text = config.get_text_config(decoder=True)
    counts = {"num_attention_heads": text.num_attention_heads}
    key_value_heads = vars(text).get("num_key_value_heads")
    if key_value_heads and size % key_value_heads:
        counts["num_key_value_heads"] = key_value_heads
    if vars(text).get("mamba_num_heads"):
        counts |= {"mamba_num_heads": text.mamba_num_heads, "n_groups": text.n_groups}
    for kind in ("dynamic", "longrope"):
        if kind in str(vars(text).get("rope_parameters")):
            raise ValueError(
                f"learner.sequence_parallel={size} with a model of rope_type {kind!r}, whose frequencies depend on the length "
                "that a rank sees; set learner.sequence_parallel=1"
            )
    for name, count in counts.items():
        if count % size:
            raise ValueError(
                f"learner.sequence_parallel={size} with a model of {name}={count}: ranks share heads evenly; set a "
                f"divisor of {count}"
            )


def attend_by_heads(
    group: SequenceGroup, attend: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Call `attend` with all tokens of this rank's heads, (1, heads, N, width), in place of a shard with all heads.

    Returns the shard's outputs, (1, n, heads, width).
    """
    repeats = max(1, group.size // key.shape[1])
    sides = [query, *(one.repeat_interleave(repeats, dim=1) for one in (key, value))]
    joined_Nc = group.to_heads(*(one[0].transpose(0, 1).flatten(1) for one in sides))
    parts = joined_Nc.split([one[0, :, 0].numel() // group.size for one in sides], dim=1)
    own = [part.unflatten(1, (-1, one.shape[-1])).transpose(0, 1)[None] for part, one in zip(parts, sides, strict=True)]
    output_1Nhd: torch.Tensor = attend(*own)
    return group.from_heads(output_1Nhd[0].flatten(1)).unflatten(1, (query.shape[1], -1))[None]


def install_mixers(model: PreTrainedModel, group: SequenceGroup) -> None:
    """Make Mamba-2 layers exchange tokens for heads in passes over shards."""
    for module in model.modules():
        if isinstance(module, NemotronHMamba2Mixer):
            module.forward = partial(_forward_by_heads, module, group)


def _forward_by_heads(mixer: Any, group: SequenceGroup, hidden: torch.Tensor, **arguments: Any) -> Any:
    """Run a Mamba-2 layer. The argument `seq_idx` has all tokens: if `hidden` has fewer, they are a shard."""
    forward, seq_idx = type(mixer).forward, arguments.get("seq_idx")
    if seq_idx is None or seq_idx.shape[1] == hidden.shape[1]:
        return forward(mixer, hidden, **arguments)
    inner, states = mixer.intermediate_size, mixer.n_groups * mixer.ssm_state_size
    parts = mixer.in_proj(hidden)[0].split([inner, inner, states, states, mixer.num_heads], dim=-1)
    output_1Nc = forward(_own_mixer(mixer, group), group.to_heads(*parts)[None], **arguments)
    return mixer.out_proj(group.from_heads(output_1Nc[0])[None])


def _own_mixer(mixer: Any, group: SequenceGroup) -> "_Part":
    """Return this rank's heads of a Mamba-2 layer, without its projections."""
    inner, heads, states = mixer.intermediate_size, mixer.num_heads, mixer.n_groups * mixer.ssm_state_size
    channels = inner, states, states
    conv1d, norm = mixer.conv1d, mixer.norm
    no_projection = _Part(forward=lambda _, values: values, weight=None, bias=None)
    changed = {
        "num_heads": heads // group.size,
        "n_groups": mixer.n_groups // group.size,
        "intermediate_size": inner // group.size,
        "conv_dim": sum(channels) // group.size,
        "in_proj": no_projection,
        "conv1d": SimpleNamespace(
            weight=group.take_heads(conv1d.weight, *channels),
            bias=None if conv1d.bias is None else group.take_heads(conv1d.bias, *channels),
        ),
        "norm": _Part(**vars(norm) | {"forward": type(norm).forward, "weight": group.take_heads(norm.weight, inner)}),
        "out_proj": no_projection,
    }
    vectors = {name: group.take_heads(getattr(mixer, name), heads) for name in ("A_log", "D", "dt_bias")}
    return _Part(**vars(mixer) | vectors | changed)


class _Part(SimpleNamespace):
    """The attributes of a module for a share of its heads. A call runs `forward` on them."""

    def __call__(self, *values: torch.Tensor) -> Any:
        return self.forward(self, *values)


class _AllGather(torch.autograd.Function):
    """See `SequenceGroup.gather`."""

    @staticmethod
    def forward(ctx: Any, values_n: torch.Tensor, group: SequenceGroup) -> torch.Tensor:
        ctx.group = group
        joined_N = values_n.new_empty(len(values_n) * group.size, *values_n.shape[1:])
        torch.distributed.all_gather_into_tensor(joined_N, values_n.contiguous(), group=group.process_group)
        return joined_N

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.group.take_shard(gradients[0]), None

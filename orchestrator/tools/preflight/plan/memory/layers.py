"""The layers of a planned model: how wide what a token leaves in each of them is, read from the modules themselves.

What a layer keeps for the backward pass is counted tensor by tensor, as autograd keeps it of the classes in transformers:
inputs of matrices, results of activations, and of norms their float32 input and what they made of it (Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", section 4.1, 2022, counts a plain transformer the same way).
Scores of attention are not kept: fused kernels make them again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

FLOAT32 = 4
"""Bytes of a number."""
SCAN_KEPT = 3
"""Float32 matrices of a chunk by itself that the scan on a CPU keeps for each head: gaps, their exponentials, scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of the stack; 0 stands for what it has none of."""

    parameters: int
    active: int
    """Parameters that a token goes through."""
    hidden: int
    norms: int
    """Norms over the hidden size."""
    queries: int = 0
    """Numbers of a token's queries, all heads together."""
    keys: int = 0
    """Those of its keys, and of its values."""
    head_dim: int = 0
    """Those of one head."""
    head_norms: bool = False
    """Whether queries and keys have norms of their own."""
    mlp: int = 0
    """Width of its MLP, or of all the experts together that a token goes to."""
    gated: bool = False
    """Whether the MLP has a gate beside it."""
    copies: int = 0
    """Experts to which a token's hidden state is copied, and whose answers are weighed."""
    mamba: int = 0
    """Channels of a Mamba-2 layer."""
    mamba_heads: int = 0
    mixed: int = 0
    """Channels of its convolution: its own, and those of both projections of the state."""
    kernel: int = 0
    """Positions that the convolution sees."""
    state: int = 0
    """Numbers of the state that it keeps of a sequence."""
    chunk: int = 0
    """Tokens of a chunk of its scan."""

    def kept_bytes(self, *, width: int, gpu: bool, scans: bool = True) -> int:
        """Return the bytes that a token leaves for the backward pass; `width` is that of a number in the passes.

        Without `scans` the insides of a scan on a CPU are computed again; a GPU's kernels keep none.
        """
        upcast = FLOAT32 if width < FLOAT32 else 0
        norm = 2 * width + max(upcast, width)
        kept = self.norms * self.hidden * norm
        if self.queries:
            kept += width * (2 * self.queries + 2 * self.keys)
            kept += (self.queries + self.keys) * norm * self.head_norms
        if self.mlp:
            kept += width * ((4 if self.gated else 3) * self.mlp + 2 * self.copies * self.hidden)
        if self.mamba:
            projected = self.mamba + self.mixed + self.mamba_heads
            kept += width * (projected + self.mamba) if gpu else self._kept_by_a_scan(projected, insides=scans)
        return kept

    def _kept_by_a_scan(self, projected: int, *, insides: bool) -> int:
        """Return what the steps of a Mamba-2 layer leave on a CPU, where no kernel joins them."""
        within = 4 * self.mamba + SCAN_KEPT * self.mamba_heads * self.chunk if insides else 0
        return FLOAT32 * (projected + 2 * self.mixed + 2 * self.mamba + within)


def layers_of(model: PreTrainedModel, config: PretrainedConfig) -> tuple[Layer, ...]:
    """Return the layers of a model's stack. Raise `ValueError` where it has none that can be told."""
    count = config.num_hidden_layers
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    if not stacks:
        raise ValueError(f"a model of type {config.model_type} has no stack of {count} layers that a plan could count")
    stack = max(stacks, key=lambda one: sum(p.numel() for p in one.parameters()))
    return tuple(_layer(module, config) for module in stack)


def _layer(module: nn.Module, config: PretrainedConfig) -> Layer:
    sizes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    whole = sum(p.numel() for p in module.parameters())
    hidden = int(config.hidden_size)
    counts: dict[str, int | bool] = {"parameters": whole, "active": whole, "hidden": hidden}
    counts["norms"] = sum(size == (hidden,) and "norm" in name for name, size in sizes.items())
    counts |= _attention(sizes, config) | _mamba(sizes, config)
    experts = {name: size for name, size in sizes.items() if ".experts." in name}
    counts |= _experts(experts, sizes, config, whole) if experts else _mlp(sizes)
    assert counts.keys() <= {each.name for each in fields(Layer)}
    return Layer(**counts)  # type: ignore[arg-type]


def _attention(sizes: Mapping[str, tuple[int, ...]], config: PretrainedConfig) -> dict[str, int | bool]:
    queries, keys = _rows(sizes, "q_proj.weight"), _rows(sizes, "k_proj.weight")
    width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    counts = {"queries": queries, "keys": keys, "head_dim": width} if queries else {}
    return counts | {"head_norms": any("q_norm" in name for name in sizes)}


def _mamba(sizes: Mapping[str, tuple[int, ...]], config: PretrainedConfig) -> dict[str, int | bool]:
    found = [size for name, size in sizes.items() if name.endswith("conv1d.weight")]
    heads = next((size[0] for name, size in sizes.items() if name.endswith("A_log")), 0)
    if not found or not heads:
        return {}
    ((mixed, _, kernel),) = found
    channels = next(size[1] for name, size in sizes.items() if name.endswith("out_proj.weight"))
    state: int = getattr(config, "ssm_state_size", None) or config.mamba_d_state
    chunk: int = getattr(config, "chunk_size", None) or config.mamba_chunk_size
    made = {"mamba": channels, "mamba_heads": heads, "mixed": mixed, "kernel": kernel}
    return made | {"state": channels * state, "chunk": chunk}


def _mlp(sizes: Mapping[str, tuple[int, ...]]) -> dict[str, int | bool]:
    width = _rows(sizes, "up_proj.weight")
    return {"mlp": width, "gated": any("gate_proj" in name for name in sizes)}


def _experts(
    experts: Mapping[str, tuple[int, ...]],
    sizes: Mapping[str, tuple[int, ...]],
    config: PretrainedConfig,
    whole: int,
) -> dict[str, int | bool]:
    """Return what a token goes through of a layer of experts, and of one beside them that every token goes to."""
    chosen = int(config.num_experts_per_tok)
    shapes = list(experts.values())
    total = shapes[0][0]
    gated = any("gate_up" in name for name in experts)
    routed = sum(torch.Size(size).numel() for size in shapes)
    each = next(size[2] for name, size in experts.items() if "down_proj" in name)
    beside = _rows({name: size for name, size in sizes.items() if name not in experts}, "up_proj.weight")
    width = chosen * each + beside
    return {"active": whole - routed + routed * chosen // total, "mlp": width, "gated": gated, "copies": chosen}


def _rows(sizes: Mapping[str, tuple[int, ...]], end: str) -> int:
    return next((size[0] for name, size in sizes.items() if name.endswith(end)), 0)

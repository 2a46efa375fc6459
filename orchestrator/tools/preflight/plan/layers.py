"""The layers of a planned model: their parameters and the widths of their tensors, read from the modules themselves.

What a layer keeps for the backward pass is counted tensor by tensor, as autograd keeps it of the classes in transformers:
inputs of matrices, results of activations, and of norms their float32 input and its result (Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models", section 4.1, 2022, counts a plain transformer the same way). Scores of
attention are not kept: fused kernels compute them again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

FLOAT32 = 4
"""Bytes of a number."""
SCAN_KEPT = 3
"""Float32 matrices of a chunk by itself that the scan on a CPU keeps for each head: gaps, their exponentials, scores."""
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of the stack. A count is 0 if the layer has no such part."""

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
    head_norms: bool = False
    """Whether queries and keys have norms of their own."""
    mlp: int = 0
    """Width of its MLP, or of all the experts together that a token goes to."""
    gated: bool = False
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
        norm = 2 * width + FLOAT32
        kept = self.norms * self.hidden * norm + width * (2 * self.queries + 2 * self.keys)
        kept += (self.queries + self.keys) * norm * self.head_norms
        kept += width * ((4 if self.gated else 3) * self.mlp + 2 * self.copies * self.hidden)
        projected = self.mamba + self.mixed + self.mamba_heads
        if gpu:
            return kept + width * (projected + self.mamba)
        within = 4 * self.mamba + SCAN_KEPT * self.mamba_heads * self.chunk if scans else 0
        return kept + FLOAT32 * (projected + 2 * self.mixed + 2 * self.mamba + within)


def layers_of(model: PreTrainedModel, config: PretrainedConfig) -> tuple[Layer, ...]:
    """Return the layers of a model's stack. Raise `ValueError` if it has no stack of as many layers as it names."""
    count = config.num_hidden_layers
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    if not stacks:
        raise ValueError(f"a model of type {config.model_type} has no stack of {count} layers that a plan could count")
    stack = max(stacks, key=lambda one: sum(p.numel() for p in one.parameters()))
    return tuple(_layer(module, config) for module in stack)


def _layer(module: nn.Module, config: PretrainedConfig) -> Layer:
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    whole, hidden = sum(p.numel() for p in module.parameters()), int(config.hidden_size)
    experts = {name: shape for name, shape in shapes.items() if ".experts." in name}
    width = _rows({name: shape for name, shape in shapes.items() if name not in experts}, "up_proj.weight")
    routed = sum(module.get_parameter(name).numel() for name in experts)
    chosen = int(config.num_experts_per_tok) if experts else 0
    total = next((shape[0] for shape in experts.values()), 1)
    each = next((shape[2] for name, shape in experts.items() if "down_proj" in name), 0)
    queries = _rows(shapes, "q_proj.weight")
    head_dim = int(getattr(config, "head_dim", None) or hidden // config.num_attention_heads)
    return Layer(
        parameters=whole,
        active=whole - routed + routed * chosen // total,
        hidden=hidden,
        norms=sum(shape == (hidden,) and "norm" in name for name, shape in shapes.items()),
        queries=queries,
        keys=_rows(shapes, "k_proj.weight") if queries else 0,
        head_dim=head_dim if queries else 0,
        head_norms=any("q_norm" in name for name in shapes),
        mlp=chosen * each + width,
        gated=any(("gate_up" if experts else "gate_proj") in name for name in experts or shapes),
        copies=chosen,
        **_mamba(shapes, config),
    )


def _mamba(shapes: Shapes, config: PretrainedConfig) -> dict[str, int]:
    """Return the counts of a Mamba-2 layer; empty for another layer."""
    convolution = next((shape for name, shape in shapes.items() if name.endswith("conv1d.weight")), None)
    heads = _rows(shapes, "A_log")
    if convolution is None or not heads:
        return {}
    channels = next(shape[1] for name, shape in shapes.items() if name.endswith("out_proj.weight"))
    state: int = getattr(config, "ssm_state_size", None) or config.mamba_d_state
    chunk: int = getattr(config, "chunk_size", None) or config.mamba_chunk_size
    counts = {"mamba": channels, "mamba_heads": heads, "mixed": convolution[0], "kernel": convolution[2]}
    return counts | {"state": channels * state, "chunk": chunk}


def _rows(shapes: Shapes, end: str) -> int:
    """Return the first size of the first tensor whose name ends so; 0 without one."""
    return next((shape[0] for name, shape in shapes.items() if name.endswith(end)), 0)

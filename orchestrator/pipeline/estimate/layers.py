"""The layers of a planned model: parameters and tensor widths, read from the modules.

Tensors kept for the backward pass are counted as autograd keeps them in transformers: inputs of matrices, results of
activations, and float32 input and result of norms. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
Models", section 4.1, 2022, count a plain transformer in the same way. Attention scores are not kept, because fused kernels
recompute them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import transformers
    from torch import nn

FLOAT32 = 4
"""Bytes of a number."""
SCAN_KEPT = 3
"""Float32 matrices of a chunk that the CPU scan keeps per head: decay differences, exponentials, scores."""
SIZES = (("ssm_state_size", "mamba_d_state", "linear_key_head_dim"), ("chunk_size", "mamba_chunk_size"))
"""Names of the size of a channel's state, and of a chunk: Nemotron-H, other Mamba-2, gated DeltaNet without chunks."""
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer of the stack. A count is 0 if the layer has no such part."""

    parameters: int
    active: int
    """Parameters that a token goes through."""
    hidden: int
    norms: int
    """Norms over the hidden size."""
    queries: int = 0
    """Numbers of a token's queries, all heads together."""
    keys: int = 0
    """Width of its keys, and of its values."""
    head_dim: int = 0
    head_norms: bool = False
    """Whether queries and keys have norms."""
    mlp: int = 0
    """Width of its MLP, or of all the experts together that a token goes to."""
    gated: bool = False
    copies: int = 0
    """Experts to which a token's hidden state is copied, and whose answers are weighed."""
    mamba: int = 0
    """Channels of a Mamba-2 layer."""
    mamba_heads: int = 0
    mixed: int = 0
    """Channels of the convolution: the inner ones, and both projections of the state."""
    kernel: int = 0
    """Positions that the convolution sees."""
    state: int = 0
    """Numbers of the state that it keeps of a sequence."""
    chunk: int = 0
    """Tokens of a chunk of its scan."""

    def kept_bytes(self, *, width: int, gpu: bool, scans: bool = True) -> int:
        """Return the bytes per token kept for the backward pass. `width` is the bytes of a number in the passes.

        Without `scans`, a CPU scan is recomputed. GPU kernels keep nothing of it.
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


def layers_of(model: "transformers.PreTrainedModel", config: "transformers.PretrainedConfig") -> tuple[Layer, ...]:
    """Return the layers of a model's stack. Raise `ValueError` if the stack does not have the configured number of layers."""
    from torch import nn  # slow: sizes alone need no torch

    count = config.num_hidden_layers
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    if not stacks:
        raise ValueError(f"a model of type {config.model_type} has no stack of {count} layers to plan")
    stack = max(stacks, key=lambda one: sum(p.numel() for p in one.parameters()))
    return tuple(_layer(module, config) for module in stack)


def _layer(module: "nn.Module", config: "transformers.PretrainedConfig") -> Layer:
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


def _mamba(shapes: Shapes, config: "transformers.PretrainedConfig") -> dict[str, int]:
    """Return the counts of a layer with a recurrent state. Empty for another layer."""
    convolution = next((shape for name, shape in shapes.items() if name.endswith("conv1d.weight")), None)
    heads = _rows(shapes, "A_log")
    if convolution is None or not heads:
        return {}
    channels = next(shape[1] for name, shape in shapes.items() if name.endswith("out_proj.weight"))
    state, chunk = (next((size for name in names if (size := getattr(config, name, None))), 0) for names in SIZES)
    counts = {"mamba": channels, "mamba_heads": heads, "mixed": convolution[0], "kernel": convolution[2]}
    return counts | {"state": channels * state, "chunk": chunk}


def _rows(shapes: Shapes, end: str) -> int:
    """Return the first size of the first tensor with this ending. 0 if there is none."""
    return next((shape[0] for name, shape in shapes.items() if name.endswith(end)), 0)

"""Memory-related sizes of a model's configuration, for the learner and for an engine."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import transformers

LAYER_TYPES = {"full_attention", "sliding_attention", "mlp", "moe"}
"""Layers that continue from transformers' cache with the needed gradient, or need no gradient from it."""
RECURRENT = {"nemotron_h": "linear_attention"}
"""Model types whose recurrent layers continue with `StateLayer` (learner/models/shared_prompt.py), and the name of these
layers."""


def require_shareable(config: "transformers.PreTrainedConfig") -> None:
    """Raise `ValueError` if a model's answers may not continue correctly from a shared prompt."""
    import transformers  # slow: the sizes alone are read without it

    text = config.get_text_config(decoder=True)
    layers = set(transformers.cache_utils.get_layer_types_and_kwargs(text)[0])
    unknown = sorted(layers - LAYER_TYPES - {RECURRENT.get(text.model_type)})
    if text.model_type in RECURRENT and text.use_bias:
        unknown.append("projections with a bias (padding would change a state)")
    if unknown:
        raise ValueError(
            f"learner.shared_prompts=true with a model of type {text.model_type}: unsupported {', '.join(unknown)}; "
            f"set learner.shared_prompts=false"
        )


WITHOUT_STATE = {"attention", "full_attention", "sliding_attention", "chunked_attention", "mlp", "moe"}
"""Types of layers in a hybrid without a state of fixed size."""
ATTENTION = WITHOUT_STATE - {"mlp", "moe"}
SPELLINGS = (
    ("mamba_num_heads", "mamba_head_dim", "ssm_state_size"),  # Nemotron-H
    ("mamba_n_heads", "mamba_d_head", "mamba_d_state"),  # Bamba, Granite 4, Falcon-H1
)
"""Configuration names for the heads of a Mamba-2 layer, their width, and the size of their state."""
STATE_BYTES, CACHE_BYTES = 4, 2
"""Bytes per number in a state, which engines keep in float32, and in the key-value cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    parameters: int
    expert_parameters: int = 0
    """Parameters of the routed experts that ranks can share (`learner.expert_parallel`)."""
    positions: int | None
    """Longest sequence in tokens, if the configuration has one."""
    vocabulary: int
    hidden: int
    blocks: float
    """Pairs of a mixing layer and an MLP. If these are separate layers, half of the layers."""
    state_bytes: int
    """Bytes that an engine keeps per sequence of any length: the states of its Mamba-2 layers."""
    cache_bytes: int
    """Bytes that an engine keeps per token: keys and values, at 2 bytes a number."""


def shape_of(directory: Path, *, parameters: int) -> ModelShape:
    """Return the shape of a model directory with `parameters` parameters."""
    return read_shape(_config_of(directory), parameters=parameters)


def _config_of(directory: Path) -> "transformers.PretrainedConfig":
    import transformers

    return transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False)


def longest_sequence(directory: Path) -> int | None:
    """Return the maximum number of positions in a model's configuration, or None if it has none."""
    config = _config_of(directory).get_text_config(decoder=True)
    positions: int | None = getattr(config, "max_position_embeddings", None)
    return positions


def read_shape(whole: "transformers.PretrainedConfig", *, parameters: int) -> ModelShape:
    config = whole.get_text_config(decoder=True)
    count = int(config.num_hidden_layers)
    types = list(getattr(config, "layers_block_type", None) or getattr(config, "layer_types", None) or [])
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    attention = sum(kind in ATTENTION for kind in types) if types else count
    return ModelShape(
        parameters=parameters,
        expert_parameters=_expert_parameters(config, types),
        positions=getattr(config, "max_position_embeddings", None),
        vocabulary=int(config.vocab_size),
        hidden=int(config.hidden_size),
        blocks=count / 2 if "mlp" in types or "moe" in types else count,
        state_bytes=sum(kind not in WITHOUT_STATE for kind in types) * _state(config) * STATE_BYTES,
        cache_bytes=attention * 2 * heads * width * CACHE_BYTES,
    )


def _expert_parameters(config: "transformers.PretrainedConfig", types: list[str]) -> int:
    """Return the parameters of the routed experts: a matrix up, one down, and with a gate a third one."""
    if config.model_type == "nemotron_h":
        layers, number, matrices = types.count("moe"), config.n_routed_experts, 2
        width = config.moe_latent_size or config.hidden_size
    elif config.model_type == "qwen3_moe":
        every, dense = config.decoder_sparse_step, config.mlp_only_layers
        layers = sum((at + 1) % every == 0 and at not in dense for at in range(config.num_hidden_layers))
        number, matrices, width = config.num_experts, 3, config.hidden_size
    else:
        return 0
    return int(layers * number * matrices * width * config.moe_intermediate_size)


def _state(config: "transformers.PretrainedConfig") -> int:
    """Return the numbers in a Mamba-2 layer's state of a sequence, 0 for unknown configuration names."""
    for spelling in SPELLINGS:
        sizes = [int(getattr(config, name, None) or 0) for name in spelling]
        if all(sizes):
            return math.prod(sizes)
    return 0

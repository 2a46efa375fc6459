"""What a model's configuration says of the memory that it takes: in the learner, and in an engine."""

import math
from dataclasses import dataclass
from pathlib import Path

import transformers

LAYER_TYPES = {"full_attention", "sliding_attention", "mlp", "moe"}
"""Layers that continue from transformers' own cache with the gradient that they need, or that need none of it."""
RECURRENT = {"nemotron_h": "linear_attention"}
"""Model types whose recurrent layers do so with `StateLayer` (learner/models/shared_prompt.py), and what these are called."""


def require_shareable(config: "transformers.PreTrainedConfig") -> None:
    """Raise `ValueError` for a model whose answers are not known to continue from a prompt that ran once."""
    text = config.get_text_config(decoder=True)
    layers = set(transformers.cache_utils.get_layer_types_and_kwargs(text)[0])
    unknown = sorted(layers - LAYER_TYPES - {RECURRENT.get(text.model_type)})
    if text.model_type in RECURRENT and text.use_bias:
        unknown.append("projections with a bias, through which padding reaches a state")
    if unknown:
        raise ValueError(
            f"learner.shared_prompts=true with a model of type {text.model_type}, which has {', '.join(unknown)}; "
            f"set learner.shared_prompts=false"
        )


WITHOUT_STATE = {"attention", "full_attention", "sliding_attention", "chunked_attention", "mlp", "moe"}
"""Types of layers in a hybrid that keep no state of a fixed size."""
ATTENTION = WITHOUT_STATE - {"mlp", "moe"}
SPELLINGS = (
    ("mamba_num_heads", "mamba_head_dim", "ssm_state_size"),  # Nemotron-H
    ("mamba_n_heads", "mamba_d_head", "mamba_d_state"),  # Bamba, Granite 4, Falcon-H1
)
"""What configurations call the heads of a Mamba-2 layer, the width of one, and the size of its state."""
STATE_BYTES, CACHE_BYTES = 4, 2
"""Of a number in a state, which engines keep in float32, and in the key-value cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    parameters: int
    positions: int | None
    """Longest sequence in tokens, where the configuration names one."""
    vocabulary: int
    hidden: int
    blocks: float
    """Pairs of a mixing layer and an MLP; where these are layers of their own, half of the layers."""
    state_bytes: int
    """What an engine keeps of a sequence whatever its length: the states of its Mamba-2 layers."""
    cache_bytes: int
    """What an engine keeps of each token: keys and values, at 2 bytes a number."""


def shape_of(directory: Path, *, parameters: int) -> ModelShape:
    """Return the shape of a model directory with so many parameters."""
    return read_shape(
        transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False), parameters=parameters
    )


def longest_sequence(directory: Path) -> int | None:
    """Return how many tokens a model takes by its own configuration; None where that names no number of positions."""
    config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False).get_text_config(decoder=True)
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
        positions=getattr(config, "max_position_embeddings", None),
        vocabulary=int(config.vocab_size),
        hidden=int(config.hidden_size),
        blocks=count / 2 if "mlp" in types or "moe" in types else count,
        state_bytes=sum(kind not in WITHOUT_STATE for kind in types) * _state(config) * STATE_BYTES,
        cache_bytes=attention * 2 * heads * width * CACHE_BYTES,
    )


def _state(config: "transformers.PretrainedConfig") -> int:
    """Return how many numbers a Mamba-2 layer keeps of a sequence; 0 for a spelling that is not known."""
    for spelling in SPELLINGS:
        sizes = [int(getattr(config, name, None) or 0) for name in spelling]
        if all(sizes):
            return math.prod(sizes)
    return 0

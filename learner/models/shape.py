"""Sizes of a model's configuration, and whether its answers may share a prompt."""

import json
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    parameters: int
    positions: int | None
    """Longest sequence in tokens, if the configuration has one."""
    vocabulary: int
    hidden: int


def longest_sequence(directory: Path) -> int | None:
    """Return the maximum number of positions in a model's configuration, or None if it has none.

    transformers, which imports slowly, is asked only if the file leaves the number to the model's class.
    """
    written = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    stated = (written.get("text_config") or written).get("max_position_embeddings")
    if isinstance(stated, int):
        return stated
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False).get_text_config(decoder=True)
    positions: int | None = getattr(config, "max_position_embeddings", None)
    return positions


def read_shape(whole: "transformers.PretrainedConfig", *, parameters: int) -> ModelShape:
    config = whole.get_text_config(decoder=True)
    return ModelShape(
        parameters=parameters,
        positions=getattr(config, "max_position_embeddings", None),
        vocabulary=int(config.vocab_size),
        hidden=int(config.hidden_size),
    )

"""Sizes of a model's configuration, and whether its answers may share a prompt."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


SCALED = {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
"""Types of RoPE whose factor is in `max_position_embeddings` already."""


def _positions(text: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that vLLM accepts, None without a limit (`_get_and_verify_max_len` of vLLM 0.32)."""
    most = text.get("model_max_length") or text.get("max_position_embeddings")
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    by_layer = [one for one in (rope, *rope.values()) if isinstance(one, Mapping)]
    factors = [one.get("factor") for one in by_layer if one.get("rope_type", one.get("type")) not in SCALED]
    if "gemma3" in text.get("model_type", ""):
        factors = []
    return most and int(most * next(filter(None, factors), 1))


def longest_sequence(directory: Path) -> int | None:
    """Return the positions of a model by its configuration, or None without a limit.

    transformers, which imports slowly, is asked only if the file leaves the number to the model's class.
    """
    written = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    stated = _positions(written.get("text_config") or written)
    if stated is not None:
        return stated
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False).get_text_config(decoder=True)
    return _positions(config.to_dict())


def read_shape(whole: "transformers.PretrainedConfig", *, parameters: int) -> ModelShape:
    config = whole.get_text_config(decoder=True)
    return ModelShape(
        parameters=parameters,
        positions=_positions(config.to_dict()),
        vocabulary=int(config.vocab_size),
        hidden=int(config.hidden_size),
    )

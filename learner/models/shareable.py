"""Which models let the answers to a prompt continue from it when it ran once, by their configurations alone."""

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

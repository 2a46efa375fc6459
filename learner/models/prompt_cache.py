"""A cache of transformers that keeps the autograd graph: answers that read from it send their gradient to the prompt."""

import torch
from torch.nn import functional
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import LinearAttentionLayer, get_layer_types_and_kwargs

LAYER_TYPES = {"full_attention", "sliding_attention", "mlp", "moe"}
"""Layers that continue from transformers' own cache with the gradient that they need, or that need none of it."""
RECURRENT = {"nemotron_h": "linear_attention"}
"""Model types whose recurrent layers do so with `StateLayer`, and what these are called."""


class StateLayer(LinearAttentionLayer):
    """The states of a Mamba layer, assigned: transformers' own layer copies in place, which autograd does not allow."""

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None
    ) -> torch.Tensor:
        """Keep and return inputs of the convolution, after those that it looks back on: the last of the prompt, or zeros."""
        kernel = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
        if self.has_previous_state[state_idx]:
            inputs = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
        else:
            inputs = functional.pad(conv_states, (max(0, kernel - conv_states.shape[-1]), 0))
        self.device, self.dtype = conv_states.device, conv_states.dtype
        self.conv_states[state_idx] = inputs[..., -kernel:]
        self.is_conv_states_initialized[state_idx] = self.has_previous_state[state_idx] = True
        return inputs

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0) -> torch.Tensor:
        """Keep and return the state after the last token."""
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = True
        return recurrent_states


def prompt_cache(config: PreTrainedConfig) -> DynamicCache:
    """Make an empty cache for a model with this configuration."""
    cache = DynamicCache(config=config)
    cache.layers = [
        StateLayer(layer.number_of_states) if type(layer) is LinearAttentionLayer else layer for layer in cache.layers
    ]
    return cache


def require_shareable(config: PreTrainedConfig) -> None:
    """Raise `ValueError` for a model whose answers are not known to continue from a prompt that ran once."""
    text = config.get_text_config(decoder=True)
    layers = set(get_layer_types_and_kwargs(text)[0])
    unknown = sorted(layers - LAYER_TYPES - {RECURRENT.get(text.model_type)})
    if text.model_type in RECURRENT and text.use_bias:
        unknown.append("projections with a bias, through which padding reaches a state")
    if unknown:
        raise ValueError(
            f"learner.shared_prompts=true with a model of type {text.model_type}, which has {', '.join(unknown)}; "
            f"set learner.shared_prompts=false"
        )

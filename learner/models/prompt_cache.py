"""A cache of transformers that keeps the autograd graph: answers that read from it send their gradient to the prompt."""

import torch
from torch.nn import functional
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import LinearAttentionLayer


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

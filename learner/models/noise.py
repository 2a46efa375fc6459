"""The random parts of a model in training mode, dropout and the noise of routers, switched off."""

import copy
from collections.abc import Iterator

import torch
from transformers import PreTrainedConfig, PreTrainedModel

PROBABILITY, ROUTER_NOISE = "drop", "jitter"
"""Parts of the names that transformers gives to probabilities of dropout, and to the width of a router's noise."""


def train_without_noise(model: PreTrainedModel) -> None:
    """Put a model in training mode without anything random, so that it computes the same function as an engine.

    Probabilities become 0, in the modules and in the configuration that they read. A checkpoint keeps the model's own. A
    router with noise is in evaluation mode instead, because PhiMoE's reads the width of its noise there too. The rest is in
    training mode, in which layers take their fused kernels and can be recomputed in the backward pass.
    """
    read, model.config = model.config, copy.deepcopy(model.config)  # of which `save_pretrained` writes the second
    for config in _configs(read):
        _clear(config)
    model.train()
    for module in model.modules():
        _clear(module)
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if any(ROUTER_NOISE in name for name in vars(module)):
            module.training = False


def _configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    for part in vars(config).values():
        if isinstance(part, PreTrainedConfig):
            yield from _configs(part)


def _clear(owner: object) -> None:
    for name, value in vars(owner).items():
        if PROBABILITY in name and isinstance(value, float):
            setattr(owner, name, 0.0)

"""Activation checkpointing: what the backward pass computes again instead of keeping it.

Whole layers: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016. Only insides that are large and cheap:
Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", section 4, 2022. Of those, attention's
fused kernels keep none, on a CPU or a GPU, and neither do the scan's CUDA kernels; what is left is the scan on a CPU
(`learner/models/mamba_scan.py`).
"""

from transformers import PreTrainedModel

from learner.models import mamba_scan


def recompute(model: PreTrainedModel, kind: str) -> None:
    """Let a model recompute nothing ("none"), the insides of its scans ("selective") or its layers ("full").

    The scans are those of all models of this process. Raises `ValueError` for a model that can't recompute its layers.
    """
    mamba_scan.install(recompute=kind == "selective")
    if kind == "full":
        if not model.supports_gradient_checkpointing:
            raise ValueError(f"learner.recompute=full: a model of type {model.config.model_type} can't; take selective")
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

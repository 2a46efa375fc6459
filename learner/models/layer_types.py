"""The types of a model's layers, found by names of tensors or of classes.

A plan counts parameters by type, a replay reports the types that differ, a parity check those that round.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerType:
    """A type of layer: parts of its tensors' names, and parts of its classes' names in lower case."""

    name: str
    tensors: tuple[str, ...]
    classes: tuple[str, ...]


LAYER_TYPES = (
    LayerType(name="linear attention", tensors=("in_proj_qkv",), classes=("deltanet",)),
    LayerType(name="mamba", tensors=("conv1d", "A_log", "dt_bias"), classes=("mamba",)),
    LayerType(name="attention", tensors=("q_proj", "qkv_proj", "c_attn"), classes=("attention",)),
    LayerType(name="expert", tensors=("experts", "gate.weight", "router"), classes=("moe", "expert", "router")),
    LayerType(name="mlp", tensors=("up_proj", "down_proj", "gate_proj", "c_fc", "fc1"), classes=("mlp",)),
)
"""The first match counts: a gated DeltaNet also has the tensors of a Mamba layer, an expert those of an MLP."""
TYPES = ("embedding", *(one.name for one in LAYER_TYPES), "norm", "adapter", "other")
"""All types of tensors."""
ENDS = ("embed", "wte", "wpe", "lm_head")
"""Parts of tensor names before and after the layers."""
NUMBERED = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


def layer_of(tensor: str) -> str:
    """Return the layer of a tensor, `layer 3`, or the name of its module outside the layers."""
    found = NUMBERED.search(tensor)
    return f"layer {found[1]}" if found else tensor.rpartition(".")[0] or tensor


def types_of_tensors(names: Iterable[str]) -> dict[str, str]:
    """Return the type of each tensor of a model, one of `TYPES`.

    A hybrid calls every layer its mixer, so sibling tensors decide the type.
    """
    listed = list(names)
    siblings: dict[str, list[str]] = {}
    for name in listed:
        siblings.setdefault(_block(name), []).append(name)
    return {name: _type(name, siblings) for name in listed}


def type_of_modules(modules: Sequence[torch.nn.Module]) -> str:
    """Return the type of modules by their class names; several types are joined by a plus sign."""
    classes = [type(module).__name__.lower() for each in modules for module in each.modules()]
    kinds = [one.name for one in LAYER_TYPES if any(word in name for word in one.classes for name in classes)]
    if "expert" in kinds:  # experts contain MLPs
        kinds = [kind for kind in kinds if kind != "mlp"]
    return " + ".join(kinds) or type(modules[0]).__name__


def _block(name: str) -> str:
    found = NUMBERED.search(name)
    if found is None:
        return name
    end = found.end()
    return name[:end] + name[end:].split(".", 1)[0]


def _type(name: str, siblings: Mapping[str, list[str]]) -> str:
    last = name.rsplit(".", 2)[-2] if "." in name else name
    if "lora_" in name:
        return "adapter"
    if "norm" in last.lower() or last.startswith("ln_"):
        return "norm"
    block = _block(name)
    if block == name:
        return "embedding" if any(end in name for end in ENDS) else "other"
    members = [member[len(block) :] for member in siblings[block]]
    for one in LAYER_TYPES:
        if any(mark in member for mark in one.tensors for member in members):
            return one.name
    part = block.rpartition(".")[2]
    return "mlp" if part in ("mlp", "mixer", "feed_forward", "ffn") else "attention" if "attn" in part else "other"

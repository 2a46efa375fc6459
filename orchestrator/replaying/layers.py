"""What of a model a tensor belongs to, by its name: which layer, and which type of layer."""

import re
from collections.abc import Iterable, Mapping

TYPES = ("embedding", "mamba", "linear attention", "attention", "mlp", "expert", "norm", "adapter", "other")
NUMBERED = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
LINEAR_ATTENTION = ("in_proj_qkv",)
"""Projections of a gated DeltaNet, which has the other tensors of a Mamba layer too."""
MAMBA = ("conv1d", "A_log", "dt_bias")
ATTENTION = ("q_proj", "qkv_proj", "c_attn")
EXPERTS = ("experts", "gate.weight", "router")
MARKS = (("linear attention", LINEAR_ATTENTION), ("mamba", MAMBA), ("attention", ATTENTION), ("expert", EXPERTS))
"""Types by what the names beside a tensor contain; the first that fits is taken."""


def layer_of(name: str) -> str:
    """Return the layer of a tensor, `layer 3`; of one that is in none the name of its module."""
    found = NUMBERED.search(name)
    return f"layer {found[1]}" if found else name.rpartition(".")[0] or name


def types_of(names: Iterable[str]) -> dict[str, str]:
    """Return the type of each tensor of a model, of `TYPES`.

    A layer of a hybrid calls all of them its mixer: what kind it is follows from what else stands beside a tensor.
    """
    listed = list(names)
    beside: dict[str, list[str]] = {}
    for name in listed:
        beside.setdefault(_block(name), []).append(name)
    return {name: _type(name, beside) for name in listed}


def _block(name: str) -> str:
    """Return the name up to the part of a layer that a tensor belongs to, such as `layers.0.mixer`."""
    found = NUMBERED.search(name)
    if found is None:
        return name
    end = found.end()
    return name[:end] + name[end:].split(".", 1)[0]


def _type(name: str, beside: Mapping[str, list[str]]) -> str:
    last = name.rsplit(".", 2)[-2] if "." in name else name
    if "lora_" in name:
        return "adapter"
    if "norm" in last.lower() or last.startswith("ln_"):
        return "norm"
    block = _block(name)
    if block == name:
        return "embedding" if any(one in name for one in ("embed", "wte", "wpe", "lm_head")) else "other"
    members = [member[len(block) :] for member in beside[block]]
    for kind, marks in MARKS:
        if any(mark in member for mark in marks for member in members):
            return kind
    part = block.rpartition(".")[2]
    return "mlp" if part in ("mlp", "mixer", "feed_forward", "ffn") else "attention" if "attn" in part else "other"

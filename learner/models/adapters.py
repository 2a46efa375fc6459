"""Low-rank adapters of linear layers. The home of peft, imported at first use because the import takes seconds."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from temper.rollout.weights.manifest import DOWN, UP

if TYPE_CHECKING:
    from peft.tuners.lora import Linear as LoraLinear

T = TypeVar("T", bound=torch.Tensor)
ADAPTER = "default"
BASE = "base_layer."


def add_adapters(model: PreTrainedModel, *, rank: int, alpha: int) -> None:
    """Add a low-rank adapter to each linear layer inside the model, and train only the adapters.

    W x becomes W x + (alpha / rank) B A x with B = 0 at first. Hu et al., "LoRA: Low-Rank Adaptation of Large Language
    Models", section 4.1, 2021. The output layer gets none, and neither do output projections of Mamba layers: their fused
    kernel reads the weight without calling the layer. A is drawn with a fixed seed. Raises `ValueError` if peft adapts other
    layers: in some models it takes dense layers for experts of the same name.
    """
    import peft

    targets = [name for name, module in model.named_modules() if _takes_adapter(model, name, module)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        peft.inject_adapter_in_model(peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets), model, ADAPTER)
    ours = {name for name, _ in _adapters(model)}
    lost = [name for name, _ in model.named_parameters() if is_adapter(name) and _layer(name) not in ours]
    if lost:
        raise ValueError(
            f"learner.lora.rank={rank}: peft has adapted {_layer(lost[0])} of a {model.config.model_type}, which checkpoints "
            "and pushes do not support; set it to 0"
        )


def _takes_adapter(model: PreTrainedModel, name: str, module: torch.nn.Module) -> bool:
    if not isinstance(module, torch.nn.Linear) or module is model.get_output_embeddings():
        return False
    parent = model.get_submodule(name.rpartition(".")[0])
    return not (name.endswith("out_proj") and "conv1d" in dict(parent.named_children()))


@contextmanager
def disable_adapters(model: PreTrainedModel) -> Iterator[None]:
    """Run a model without its adapters. peft's switch would also change which weights are trained."""
    layers = [layer for _, layer in _adapters(model)]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def merge_adapters(model: PreTrainedModel, parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the parameters by the names of a model without adapters, with adapters added to their weights.

    A weight comes together with its adapter, both whole. A sum is computed in float32 and rounded once, to the weight's
    type.
    """
    whole = strip_adapters(parameters)
    for name, layer in _adapters(model):
        weight = f"{name}.weight"
        if weight in whole:
            down, up = (side[ADAPTER].get_parameter("weight").float() for side in (layer.lora_A, layer.lora_B))
            product = (up @ down).mul_(layer.scaling[ADAPTER])  # in place, without further copies of the weight
            whole[weight] = product.add_(whole[weight]).to(whole[weight].dtype)
    return whole


def strip_adapters(parameters: Mapping[str, T]) -> dict[str, T]:
    """Return the parameters that are not adapters, by the names of a model without them."""
    return {name.replace(BASE, ""): tensor for name, tensor in parameters.items() if not is_adapter(name)}


def adapter_names(model: PreTrainedModel) -> dict[str, str]:
    """Return the wire names of adapters: the checkpoint name of their weight, plus the part.

    Raises `ValueError` if a checkpoint stores a weight in another layout than training, because its adapter does not fit.
    """
    weights = {f"{name}.weight": torch.empty(_shape(layer), device="meta") for name, layer in _adapters(model)}
    saved = {id(tensor): name for name, tensor in revert_weight_conversion(model, dict(weights)).items()}
    names: dict[str, str] = {}
    for name, weight in weights.items():
        if id(weight) not in saved:
            raise ValueError(f"a checkpoint of this model stores {name} in another layout")
        for part, end in (("A", DOWN), ("B", UP)):
            names[f"{name.removesuffix('.weight')}.lora_{part}.{ADAPTER}.weight"] = f"{saved[id(weight)]}{end}"
    return names


def adapter_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of adapters by their wire names. Raises `ValueError` like `adapter_names`."""
    shapes: dict[str, tuple[int, ...]] = {}
    names = adapter_names(model)
    for name, layer in _adapters(model):
        rank, (rows, columns) = layer.r[ADAPTER], _shape(layer)
        shapes[names[f"{name}.lora_A.{ADAPTER}.weight"]] = (rank, columns)
        shapes[names[f"{name}.lora_B.{ADAPTER}.weight"]] = (rows, rank)
    return shapes


def is_adapter(name: str) -> bool:
    return ".lora_" in name


def load_adapters(model: PreTrainedModel, path: Path) -> None:
    """Read a checkpoint's adapters (safetensors). Raises `ValueError` if their names or ranks differ."""
    ours = {name: p for name, p in model.named_parameters() if is_adapter(name)}
    saved = load_file(path)
    if {name: t.shape for name, t in saved.items()} != {name: p.shape for name, p in ours.items()}:
        raise ValueError(f"{path} holds other adapters than learner.lora.rank creates; set the rank of its run")
    with torch.no_grad():
        for name, parameter in ours.items():
            parameter.copy_(saved[name])


def _adapters(model: PreTrainedModel) -> Iterator[tuple[str, "LoraLinear"]]:
    if not any(is_adapter(name) for name, _ in model.named_parameters()):
        return
    from peft.tuners.lora import Linear as LoraLinear

    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            yield name, module


def _layer(name: str) -> str:
    return name.partition(".lora_")[0]


def _shape(layer: "LoraLinear") -> tuple[int, int]:
    """Return the shape of an adapter's weight, even if the weight is partitioned over ranks."""
    assert layer.out_features is not None
    assert layer.in_features is not None
    return layer.out_features, layer.in_features

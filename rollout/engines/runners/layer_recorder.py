"""Records the hidden states between the layers in vLLM's worker, for one request that runs alone.

Only for layers that run as Python in every pass (`enforce_eager`). Suffixes: `_TD` token of the recorded passes and hidden
size.
"""

from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import save_file

EMBEDDING = "embedding"
"""The point before the first layer."""


def after_layer(number: int) -> str:
    """Return the name of the point after a layer."""
    return f"{number}"


def inside_layer(number: int) -> str:
    """Return the name of the point after a layer's attention."""
    return f"{number}.inside"


def layers_of(model: torch.nn.Module, *, count: int) -> list[torch.nn.Module]:
    """Return the layers of a model: the first module list of this length.

    Raise `ValueError` without one, for example in a process of a pipeline.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return list(module)
    raise ValueError(f"{type(model).__name__} has no list of {count} layers")


def norms_of(layer: torch.nn.Module) -> list[torch.nn.Module]:
    return [child for child in layer.children() if "norm" in type(child).__name__.lower()]


class LayerRecorder:
    """Hooks on a vLLM model's layers, from construction to `take`.

    vLLM's layers pass the residual stream as two tensors, whose sum is the hidden state. The second normalization of a
    layer adds them, so its output shows the stream after attention. Raises `ValueError` if the layers are not found, or run
    in CUDA graphs.
    """

    def __init__(self, model: torch.nn.Module, *, eager: bool, layers: int) -> None:
        if not eager:
            raise ValueError("vLLM replays CUDA graphs, which hide the layers")
        found = layers_of(model, count=layers)
        self._points: dict[str, list[torch.Tensor]] = {}
        self._handles = [found[0].register_forward_pre_hook(self._before, with_kwargs=True)]
        for number, layer in enumerate(found):
            self._handles.append(layer.register_forward_hook(self._hook(after_layer(number))))
            norms = norms_of(layer)
            if len(norms) == 2:
                self._handles.append(norms[1].register_forward_hook(self._hook(inside_layer(number), inside=True)))

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()

    def take(self, file: str) -> int:
        """Write the recording to a safetensors file, one float32 tensor (tokens, hidden size) per point, and remove the
        hooks. Return the number of tokens.
        """
        self.end()
        points_TD = {name: torch.cat(parts).contiguous() for name, parts in self._points.items()}
        save_file(points_TD, file)
        return min((len(point_TD) for point_TD in points_TD.values()), default=0)

    def _before(self, _layer: torch.nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Record the input of the first layer, before a layer changes it in place."""
        values = (named.get("hidden_states"), *given, *named.values())
        hidden_TD = next(one for one in values if isinstance(one, torch.Tensor) and one.is_floating_point())
        self._add(EMBEDDING, hidden_TD.float())

    def _hook(self, point: str, *, inside: bool = False) -> Any:
        def record(_module: torch.nn.Module, _given: Any, returned: Any) -> None:
            if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], torch.Tensor):
                hidden_TD, residual_TD = returned
                self._add(point, residual_TD.float() if inside else hidden_TD.float() + residual_TD.float())
            elif not inside:
                self._add(point, (returned[0] if isinstance(returned, tuple) else returned).float())

        return record

    def _add(self, point: str, hidden_TD: torch.Tensor) -> None:
        self._points.setdefault(point, []).append(hidden_TD.detach().to("cpu", copy=True))

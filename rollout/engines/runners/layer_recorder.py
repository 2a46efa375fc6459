"""Records inside vLLM's worker the hidden states between a model's layers, of one request that runs alone.

In layers that run as Python in every pass: `enforce_eager`. Suffixes: `_TD` token of the recorded passes and hidden size.
"""

from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import save_file

EMBEDDING = "embedding"
"""The point before the first layer."""


def after_layer(number: int) -> str:
    """Return the name of the point behind a layer."""
    return f"{number}"


def inside_layer(number: int) -> str:
    """Return the name of the point between a layer's attention and what follows it in the same layer."""
    return f"{number}.inside"


def layers_of(model: torch.nn.Module, *, count: int) -> list[torch.nn.Module]:
    """Return the layers of a model in their order: the first list of so many modules.

    Raise `ValueError` where there is none, as in a process that has a part of the layers.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return list(module)
    raise ValueError(f"{type(model).__name__} has no list of {count} layers")


def norms_of(layer: torch.nn.Module) -> list[torch.nn.Module]:
    return [child for child in layer.children() if "norm" in type(child).__name__.lower()]


class LayerRecorder:
    """Hooks on the layers of one of vLLM's models, from when it is made until `take`.

    vLLM's layers hand on a residual stream in two parts, whose sum is the hidden state, and normalise it together with
    the second: what comes out of a layer's second normalisation is the stream in the middle of that layer.
    Raises `ValueError` where layers can't be found, or run in recorded graphs.
    """

    def __init__(self, model: torch.nn.Module, *, eager: bool, layers: int) -> None:
        if not eager:
            raise ValueError("vLLM replays recorded graphs, in which no layer is seen")
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
        """Write what was recorded to a safetensors file, a float32 tensor (tokens, hidden size) a point, and take the hooks
        away; returns how many tokens there are.
        """
        self.end()
        points_TD = {name: torch.cat(parts).contiguous() for name, parts in self._points.items()}
        save_file(points_TD, file)
        return min((len(point_TD) for point_TD in points_TD.values()), default=0)

    def _before(self, _layer: torch.nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Record what goes into the first layer, before any layer changes it in place."""
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

"""Records the routers' expert choices in vLLM's worker, for each position of each request.

Only for vLLM's first model runner, with layers that run as Python in every pass (`enforce_eager`). The second runner has
its own recorder (`enable_return_routed_experts`), which returns a row for every layer.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

from temper.rollout.expert_choices import join_recorded

KEPT = 4
"""Number of requests whose choices are kept until `take`, as a multiple of the running ones."""


def expert_layers(model: torch.nn.Module) -> list[int]:
    """Return the indices of layers with experts."""
    return sorted(module.layer_id for module in model.modules() if isinstance(module, MoERunner))


class ExpertRecorder:
    """Records expert choices. Raises `ValueError` if this model's routers can't be captured."""

    def __init__(self, model_runner: Any) -> None:
        self._runner = model_runner
        layers = [module for module in model_runner.get_model().modules() if isinstance(module, MoERunner)]
        layers.sort(key=lambda layer: layer.layer_id)
        if not layers:
            raise ValueError("the model has no expert layers")
        if not model_runner.model_config.enforce_eager:
            raise ValueError("vLLM replays CUDA graphs, which hide the routers")
        for number, layer in enumerate(layers):
            if not isinstance(layer.router, BaseRouter) or layer._quant_method.is_monolithic:
                raise ValueError(f"{type(layer.router).__name__} chooses experts inside a kernel")
            layer.router.set_capture_fn(partial(self._record, number))
        self._layers = len(layers)
        self._room = KEPT * model_runner.max_num_reqs
        self._pass = np.empty((0, self._layers, 0), dtype=np.int16)
        self._recorded: dict[str, list[tuple[int, NDArray[np.int16]]]] = {}

    def take(self, request: str) -> NDArray[np.int16]:
        """Return and forget the choices of a request, a row for each position, by its client id."""
        # The newest one: a preempted request is recorded under each of its ids.
        name = next(name for name in reversed(self._recorded) if name.rpartition("-")[0] == request or name == request)
        return join_recorded(self._recorded.pop(name))

    def _record(self, layer: int, chosen: torch.Tensor) -> None:
        """Store the choices (tokens, K) of one layer. Layers come in order in every pass."""
        if layer == 0:
            self._pass = np.empty((chosen.shape[0], self._layers, chosen.shape[1]), dtype=np.int16)
        self._pass[:, layer] = chosen.to("cpu", torch.int16).numpy()
        if layer == self._layers - 1:
            self._keep()

    def _keep(self) -> None:
        """Split a pass by request. A request's tokens are consecutive."""
        batch = self._runner.input_batch
        bounds = self._runner.query_start_loc.np
        for place, name in enumerate(batch.req_ids):
            own = self._pass[bounds[place] : bounds[place + 1]].copy()
            self._recorded.setdefault(name, []).append((int(batch.num_computed_tokens_cpu[place]), own))
        while len(self._recorded) > self._room:  # of aborted requests
            del self._recorded[next(iter(self._recorded))]

"""What a model under training has on its device: all, its weights alone to be pushed from, or nothing."""

from typing import Any

import torch

from temper.learner.engine.aside import Aside, memory_of, nbytes, reachable


class DeviceMemory:
    """Moves the weights of one engine of DeepSpeed, and all else that it trains with, to main memory and back."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._device: torch.device = engine.device
        self._weights_aside, self._states_aside = Aside(), Aside()

    @property
    def is_whole(self) -> bool:
        """Whether all is on the device, as training needs it."""
        return not (self._weights_aside or self._states_aside)

    def occupy(self, *, weights: bool, states: bool) -> None:
        """Have the weights, and the states of optimiser and gradients, on the device from now on, or in main memory."""
        if weights:
            self._weights_aside.put_back()
        if states:
            self._states_aside.put_back()
        if weights and states:
            return
        if self._engine.zero_optimization_partition_weights():
            self._engine.empty_partition_cache()  # stage 3: whole parameters that it has gathered
        of_weights, of_states = self._memory()
        if not states:
            self._states_aside.take(of_states.values())
        if not weights:
            self._weights_aside.take(of_weights.values())
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def nbytes(self) -> tuple[int, int]:
        """Return how many bytes weights and states have on the device."""
        of_weights, of_states = self._memory()
        return nbytes(of_weights.values()), nbytes(of_states.values())

    def _memory(self) -> tuple[dict[int, torch.UntypedStorage], dict[int, torch.UntypedStorage]]:
        """Return the memory of the weights and that of the states, which hold none of it."""
        model, device = self._engine.module, self._device
        parameters = list(model.parameters())
        partitions = [vars(parameter)["ds_tensor"] for parameter in parameters if "ds_tensor" in vars(parameter)]
        of_weights = memory_of([*parameters, *partitions, *model.buffers()], device=device)
        tensors = reachable(self._engine.optimizer, self._engine.basic_optimizer, parameters)
        of_states = memory_of(tensors, device=device)
        return of_weights, {number: one for number, one in of_states.items() if number not in of_weights}

"""Offloading of a model under training: its tensors move to main memory for a while and back.

DeepSpeed's `offload_states` and `reload_states` support only some configurations: at stage 3 only its FusedAdam, not stage
0, not bfloat16 at stage 1, and below stage 3 no frozen weights, such as the base weights of adapters. This module moves
storages instead, so tensors, views and tensors with shared memory stay valid.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from temper.rollout.weights.host_memory import available_bytes


class OffloadedStorage:
    """Moves storages from a device to main memory and back. Computing with an offloaded tensor crashes."""

    def __init__(self) -> None:
        self._copies: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []

    def offload(self, memory: Iterable[torch.UntypedStorage]) -> None:
        """Copy these storages to main memory and free them. Offloaded ones are skipped.

        Memory that others own, such as a mapped file, stays. Raises `MemoryError` if main memory is too small.
        """
        for storage in memory:
            if storage.nbytes() and storage.resizable():
                _require_memory(storage.nbytes())
                copy = torch.UntypedStorage(storage.nbytes())
                copy.copy_(storage)
                storage.resize_(0)
                self._copies.append((storage, copy))

    def reload(self) -> None:
        """Move all offloaded storages back. If the device is full, the rest stays offloaded and the error is raised."""
        while self._copies:
            storage, copy = self._copies[-1]
            storage.resize_(copy.nbytes())
            storage.copy_(copy)
            self._copies.pop()

    def __bool__(self) -> bool:
        return bool(self._copies)


def _require_memory(size: int) -> None:
    available, _ = available_bytes()
    if size > available:  # the kernel would kill a process
        raise MemoryError(
            f"placement=colocated: main memory has {available:,} bytes left, and offloading the learner's next storage "
            f"needs {size:,}; use machines with more memory, or placement=dedicated"
        )


def find_storages(tensors: Iterable[torch.Tensor], *, device: torch.device) -> dict[int, torch.UntypedStorage]:
    """Return the storages of the tensors on a device, each once, by a stable number."""
    here = (tensor.untyped_storage() for tensor in tensors if tensor.device.type == device.type)
    return {storage._cdata: storage for storage in here}


def nbytes(memory: Iterable[torch.UntypedStorage]) -> int:
    return sum(storage.nbytes() for storage in memory)


def device_bytes() -> int | None:
    """Return the bytes that all processes use on this process's GPU, or None on a CPU."""
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return total - free


def find_tensors(*roots: object) -> Iterator[torch.Tensor]:
    """Yield the tensors that these objects reach through containers, DeepSpeed's objects and optimisers.

    Modules are not searched. Pass their parameters as roots. A parameter yields its gradient and its partition too.
    """
    todo, seen = list(roots), dict[int, object]()  # keeps objects alive, so that ids stay unique
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            yield value
            todo += [part for part in (value.grad if value.is_leaf else None, _partition(value)) if part is not None]
        elif isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            todo += value
        elif _is_entered(value):
            todo += vars(value).values()


def _partition(tensor: torch.Tensor) -> object:
    return vars(tensor).get("ds_tensor") if isinstance(tensor, torch.nn.Parameter) else None


def _is_entered(value: Any) -> bool:
    if isinstance(value, torch.nn.Module | type):
        return False
    ours = isinstance(value, torch.optim.Optimizer) or type(value).__module__.startswith("deepspeed.")
    return ours and "__dict__" in dir(value)


class DeviceMemory:
    """Moves the weights of one DeepSpeed engine, and its other training state, to main memory and back."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._device: torch.device = engine.device
        self._offloaded_weights, self._offloaded_states = OffloadedStorage(), OffloadedStorage()

    @property
    def is_onloaded(self) -> bool:
        """Whether all is on the device, as training needs it."""
        return not (self._offloaded_weights or self._offloaded_states)

    def set_onloaded(self, *, weights: bool, states: bool) -> None:
        """Move the weights, and the states of optimiser and gradients, to the device, or to main memory."""
        if weights:
            self._offloaded_weights.reload()
        if states:
            self._offloaded_states.reload()
        if weights and states:
            return
        if self._engine.zero_optimization_partition_weights():
            self._engine.empty_partition_cache()  # stage 3: gathered parameters
        weight_storages, state_storages = self._memory()
        if not states:
            self._offloaded_states.offload(state_storages.values())
        if not weights:
            self._offloaded_weights.offload(weight_storages.values())
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def nbytes(self) -> tuple[int, int]:
        """Return the bytes of weights and of states on the device."""
        weight_storages, state_storages = self._memory()
        return nbytes(weight_storages.values()), nbytes(state_storages.values())

    def _memory(self) -> tuple[dict[int, torch.UntypedStorage], dict[int, torch.UntypedStorage]]:
        model, device = self._engine.module, self._device
        parameters = list(model.parameters())
        partitions = [vars(parameter)["ds_tensor"] for parameter in parameters if "ds_tensor" in vars(parameter)]
        weight_storages = find_storages([*parameters, *partitions, *model.buffers()], device=device)
        tensors = find_tensors(self._engine.optimizer, self._engine.basic_optimizer, parameters)
        state_storages = find_storages(tensors, device=device)
        return weight_storages, {number: one for number, one in state_storages.items() if number not in weight_storages}

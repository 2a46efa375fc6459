"""A model under training whose tensors give up their device for a while: their contents lie in main memory meanwhile.

DeepSpeed has such calls (`offload_states`, `reload_states`), but not for every learner here: at stage 3 only for its own
FusedAdam, at stage 0 and for bfloat16 at stage 1 not at all, and below stage 3 not for frozen weights, such as those under
adapters. So this module moves storages: a tensor, its views and all tensors that share its memory keep their places and are
whole again afterwards.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from temper.rollout.weights.host_memory import available_bytes


class OffloadedStorage:
    """Takes storages off a device and puts them back. Whoever computes with them meanwhile crashes."""

    def __init__(self) -> None:
        self._copies: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []

    def offload(self, memory: Iterable[torch.UntypedStorage]) -> None:
        """Copy this memory to main memory, and free it. Does nothing to what is aside.

        What others own, such as a file that is mapped, stays: on a CPU there may be some. Raises `MemoryError` where main
        memory has no room.
        """
        for storage in memory:
            if storage.nbytes() and storage.resizable():
                _require_memory(storage.nbytes())
                copy = torch.UntypedStorage(storage.nbytes())
                copy.copy_(storage)
                storage.resize_(0)
                self._copies.append((storage, copy))

    def reload(self) -> None:
        """Bring all back that was taken. What the device has no room for stays aside, and its error is raised."""
        while self._copies:
            storage, copy = self._copies[-1]
            storage.resize_(copy.nbytes())
            storage.copy_(copy)
            self._copies.pop()

    def __bool__(self) -> bool:
        return bool(self._copies)


def _require_memory(size: int) -> None:
    available, _ = available_bytes()
    if size > available:  # the kernel would kill a process to make room
        raise MemoryError(
            f"placement=colocated: main memory has {available:,} bytes left for what the learner puts aside, whose next piece "
            f"has {size:,}; use machines with more of it, or placement=dedicated"
        )


def find_storages(tensors: Iterable[torch.Tensor], *, device: torch.device) -> dict[int, torch.UntypedStorage]:
    """Return the memory of those tensors that are on a device, each piece once, by a number that stays the same."""
    here = (tensor.untyped_storage() for tensor in tensors if tensor.device.type == device.type)
    return {storage._cdata: storage for storage in here}


def nbytes(memory: Iterable[torch.UntypedStorage]) -> int:
    """Return how many bytes are there."""
    return sum(storage.nbytes() for storage in memory)


def device_bytes() -> int | None:
    """Return the bytes that all processes use on the GPU of this one, or None on a CPU."""
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return total - free


def find_tensors(*roots: object) -> Iterator[torch.Tensor]:
    """Yield the tensors that are reached from these objects through containers, objects of DeepSpeed and optimisers.

    Modules are not entered, but their parameters may be roots: with a parameter come its gradient and its partition.
    """
    todo, seen = list(roots), dict[int, object]()  # with what was seen, so that no other object gets its number
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
    """Moves the weights of one engine of DeepSpeed, and all else that it trains with, to main memory and back."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._device: torch.device = engine.device
        self._offloaded_weights, self._offloaded_states = OffloadedStorage(), OffloadedStorage()

    @property
    def is_whole(self) -> bool:
        """Whether all is on the device, as training needs it."""
        return not (self._offloaded_weights or self._offloaded_states)

    def set_onloaded(self, *, weights: bool, states: bool) -> None:
        """Have the weights, and the states of optimiser and gradients, on the device from now on, or in main memory."""
        if weights:
            self._offloaded_weights.reload()
        if states:
            self._offloaded_states.reload()
        if weights and states:
            return
        if self._engine.zero_optimization_partition_weights():
            self._engine.empty_partition_cache()  # stage 3: whole parameters that it has gathered
        weight_storages, state_storages = self._memory()
        if not states:
            self._offloaded_states.offload(state_storages.values())
        if not weights:
            self._offloaded_weights.offload(weight_storages.values())
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def nbytes(self) -> tuple[int, int]:
        """Return how many bytes weights and states have on the device."""
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

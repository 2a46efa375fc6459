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


class Aside:
    """Takes storages off a device and puts them back. Whoever computes with them meanwhile crashes."""

    def __init__(self) -> None:
        self._taken: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []

    def take(self, memory: Iterable[torch.UntypedStorage]) -> None:
        """Copy this memory to main memory, and free it. Does nothing to what is aside.

        What others own, such as a file that is mapped, stays: on a CPU there may be some. Raises `MemoryError` where main
        memory has no room.
        """
        for storage in memory:
            if storage.nbytes() and storage.resizable():
                _require_room(storage.nbytes())
                copy = torch.UntypedStorage(storage.nbytes())
                copy.copy_(storage)
                storage.resize_(0)
                self._taken.append((storage, copy))

    def put_back(self) -> None:
        """Bring all back that was taken. What the device has no room for stays aside, and its error is raised."""
        while self._taken:
            storage, copy = self._taken[-1]
            storage.resize_(copy.nbytes())
            storage.copy_(copy)
            self._taken.pop()

    def __bool__(self) -> bool:
        return bool(self._taken)


def _require_room(size: int) -> None:
    available, _ = available_bytes()
    if size > available:  # the kernel would kill a process to make room
        raise MemoryError(
            f"placement=colocated: main memory has {available:,} bytes left for what the learner puts aside, whose next piece "
            f"has {size:,}; use machines with more of it, or placement=dedicated"
        )


def memory_of(tensors: Iterable[torch.Tensor], *, device: torch.device) -> dict[int, torch.UntypedStorage]:
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


def reachable(*roots: object) -> Iterator[torch.Tensor]:
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
        model, device = self._engine.module, self._device
        parameters = list(model.parameters())
        partitions = [vars(parameter)["ds_tensor"] for parameter in parameters if "ds_tensor" in vars(parameter)]
        of_weights = memory_of([*parameters, *partitions, *model.buffers()], device=device)
        tensors = reachable(self._engine.optimizer, self._engine.basic_optimizer, parameters)
        of_states = memory_of(tensors, device=device)
        return of_weights, {number: one for number, one in of_states.items() if number not in of_weights}

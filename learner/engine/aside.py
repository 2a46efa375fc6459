"""Tensors that give up the memory of their device for a while: their contents lie in main memory meanwhile.

DeepSpeed has such calls (`offload_states`, `reload_states`), but not for every learner here: at stage 3 only for its own
FusedAdam, at stage 0 and for bfloat16 at stage 1 not at all, and below stage 3 not for frozen weights, such as those that
adapters stand beside. So storages are moved, whoever has them: a tensor, its views, and whatever shares its memory keep their
places and are whole again after.
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
        """Return whether anything is aside."""
        return bool(self._taken)


def _require_room(size: int) -> None:
    available, _ = available_bytes()
    if size > available:  # the kernel would kill a process to make room
        raise MemoryError(
            f"placement=shared: main memory has {available:,} bytes left for what the learner puts aside, whose next piece "
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
    """Return what all processes have taken of this one's GPU; None on a CPU."""
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
    """Return this rank's partition of a parameter at stage 3."""
    return vars(tensor).get("ds_tensor") if isinstance(tensor, torch.nn.Parameter) else None


def _is_entered(value: Any) -> bool:
    if isinstance(value, torch.nn.Module | type):
        return False
    ours = isinstance(value, torch.optim.Optimizer) or type(value).__module__.startswith("deepspeed.")
    return ours and "__dict__" in dir(value)

"""Tensors that are put aside and brought back, with all that shares their memory."""

from typing import Any

import pytest
import torch

from temper.learner.engine.device_memory import OffloadedStorage, find_storages, find_tensors, nbytes

CPU = torch.device("cpu")


def test_shared_memory_is_put_aside_once_and_restored() -> None:
    flat = torch.arange(12.0)
    parameter = torch.nn.Parameter(flat[:6].view(2, 3))
    parameter.grad = torch.full((2, 3), 0.5)
    other = torch.arange(4)
    memory = find_storages([flat, parameter, parameter.grad], device=CPU).values()
    assert nbytes(memory) == flat.nbytes + parameter.grad.nbytes
    offloaded = OffloadedStorage()
    offloaded.offload(memory)
    offloaded.offload(memory)  # it has nothing any more
    assert offloaded
    assert (nbytes(memory), parameter.shape, other.tolist()) == (0, (2, 3), [0, 1, 2, 3])
    offloaded.reload()
    assert not offloaded
    flat[0] = 7.0
    assert parameter.tolist() == [[7.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert parameter.grad.tolist() == [[0.5] * 3] * 2


def test_memory_without_room_stays_aside_and_is_restored_later() -> None:
    class Crowded(torch.UntypedStorage):
        """Memory of a device that others have."""

        crowded = False

        def resize_(self, size: int) -> Any:
            if size and self.crowded:
                raise RuntimeError("out of memory")
            return super().resize_(size)

    first, second = Crowded(16), Crowded(8)
    first.copy_(torch.full((16,), 3, dtype=torch.uint8).untyped_storage())
    second.copy_(torch.full((8,), 4, dtype=torch.uint8).untyped_storage())
    offloaded = OffloadedStorage()
    offloaded.offload([first, second])
    first.crowded = True
    with pytest.raises(RuntimeError, match="out of memory"):
        offloaded.reload()
    assert offloaded
    assert (first.nbytes(), second.tolist()) == (0, [4] * 8)
    first.crowded = False
    offloaded.reload()
    assert not offloaded
    assert first.tolist() == [3] * 16


def test_what_a_file_or_an_array_lends_stays() -> None:
    lent = torch.frombuffer(bytearray(b"1234"), dtype=torch.uint8)
    offloaded = OffloadedStorage()
    offloaded.offload(find_storages([lent], device=CPU).values())
    assert not offloaded
    assert lent.tolist() == [49, 50, 51, 52]


def test_all_that_an_optimiser_trains_with_is_found() -> None:
    layer = torch.nn.Linear(3, 2)
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    found = {tensor.data_ptr() for tensor in find_tensors(optimiser)}
    wanted = [value for state in optimiser.state.values() for value in state.values()]
    wanted += [
        tensor for parameter in layer.parameters() for tensor in (parameter, parameter.grad) if tensor is not None
    ]
    assert len(wanted) == 10
    assert {tensor.data_ptr() for tensor in wanted} <= found


def test_what_main_memory_has_no_room_for_is_not_put_aside() -> None:
    class Vast:
        """More than any machine has."""

        def nbytes(self) -> int:
            return 2**60

        def resizable(self) -> bool:
            return True

    memory: Any = [Vast()]
    with pytest.raises(MemoryError, match="placement=colocated"):
        OffloadedStorage().offload(memory)

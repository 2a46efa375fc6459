"""Batches of a finite set of items, epoch after epoch."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position of an endless order: the epoch, the place in it, and the number of the item that stands there."""

    epoch: int
    place: int
    item: int


def positions(step: int, batch_size: int) -> range:
    """Return the positions of an endless order that a step takes (1 or more)."""
    return range((step - 1) * batch_size, step * batch_size)


class Epochs:
    """The numbers 0 to `count` - 1, shuffled anew in each epoch; the order depends on `seed` and the epoch only."""

    def __init__(self, count: int, *, seed: str) -> None:
        assert count > 0
        self._count = count
        self._seed = seed
        self._shuffled: tuple[int, list[int]] = (-1, [])

    def at(self, index: int) -> Position:
        """Return a position of the endless order."""
        epoch, place = divmod(index, self._count)
        held, order = self._shuffled
        if held != epoch:
            order = list(range(self._count))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._shuffled = (epoch, order)
        return Position(epoch=epoch, place=place, item=order[place])


class EpochBatches(Generic[T]):
    """Batches of items in an order shuffled anew in each epoch; batch `step` depends on the seed and the step only."""

    def __init__(self, count: int, make: Callable[[Position], T], *, batch_size: int, seed: str) -> None:
        """Take from `make` what stands at a position; `count` is the number of items."""
        self._make = make
        self._batch_size = batch_size
        self._epochs = Epochs(count, seed=seed)

    def batch(self, step: int) -> list[T]:
        """Return the items of a step (1 or more)."""
        return [self._make(self._epochs.at(index)) for index in positions(step, self._batch_size)]

"""Items read on demand, one block at a time."""

import random
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")
BLOCK = 1024
HELD = 2


class Blocks(Generic[T]):
    """An endless sequence of items in row order, repeated, and shuffled by the seed within each block.

    Only `HELD` blocks are in memory. An item before them is read again from the first row.
    """

    def __init__(self, read: Callable[[], Iterator[T]], *, seed: str | None) -> None:
        """Read the first block. `read` must yield the same items each time. A `seed` of None keeps their order."""
        self._read, self._seed = read, seed
        self._blocks: dict[int, list[T]] = {}
        self._reading: Iterator[T] = iter(())
        self._next = 0
        self._reads = threading.Lock()
        self._count: int | None = None
        self._shuffled: tuple[tuple[int, int], list[T]] = ((-1, -1), [])
        self.is_empty = not self._block(0)

    def item(self, index: int) -> T:
        """Return the item at `index`, modulo the count. There must be one. Raise any error of the reader."""
        assert not self.is_empty
        with self._reads:
            while True:
                epoch, place = (0, index) if self._count is None else divmod(index, self._count)
                number, offset = divmod(place, BLOCK)
                block = self._block(number)
                if offset < len(block):
                    return self._order(block, epoch, number)[offset]
                assert self._count is not None  # the rows end before this index

    def _order(self, block: list[T], epoch: int, number: int) -> list[T]:
        if self._seed is None:
            return block
        if self._shuffled[0] != (epoch, number):
            order = random.Random(f"{self._seed}/{epoch}/{number}").sample(block, len(block))
            self._shuffled = (epoch, number), order
        return self._shuffled[1]

    def _block(self, number: int) -> list[T]:
        if number in self._blocks:
            return self._blocks[number]
        if number < self._next or self._next == 0:
            self._reading, self._next = self._read(), 0
        block: list[T] = []
        while self._next <= number:
            try:
                block = list(islice(self._reading, BLOCK))
            except BaseException:
                self._next = 0  # a failed iterator has ended: read again from the first row
                raise
            if len(block) < BLOCK and self._count is None:
                self._count = self._next * BLOCK + len(block)
            if not block:
                return block
            self._next += 1
        self._blocks[number] = block
        for old in list(self._blocks)[:-HELD]:
            del self._blocks[old]
        return block

"""The order of a finite set of samples, epoch after epoch."""

import random


class Epochs:
    """The numbers 0 to `count` - 1, shuffled anew in each epoch; the order depends on `seed` and the epoch only."""

    def __init__(self, count: int, *, seed: str) -> None:
        assert count > 0
        self._count = count
        self._seed = seed
        self._held: tuple[int, list[int]] = (-1, [])

    def at(self, index: int) -> tuple[int, int, int]:
        """At a position of the endless order: the epoch, the place in it, and which sample stands there."""
        epoch, place = divmod(index, self._count)
        held, order = self._held
        if held != epoch:
            order = list(range(self._count))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._held = (epoch, order)
        return epoch, place, order[place]

"""Tasks of rows that are read as they are needed, a block at a time."""

import random
from collections.abc import Iterator
from itertools import islice

from envs.binding import BoundEnv
from envs.core.task import Task
from envs.data.config import DataConfig
from envs.data.overlap import prompt_words
from envs.task_rows import evaluation_index, row_tasks

BLOCK = 1024
"""Tasks that are held at once, and shuffled among themselves."""
HELD = 2


class StreamedSource:
    """The tasks of a split in the order of their rows, of training shuffled inside each block by the seed, over and over.

    Only `HELD` blocks are in memory. A task far behind the newest one is read again from the first row on, which takes as
    long as it took to get there. Rows that repeat others are not noticed.
    """

    def __init__(self, env: BoundEnv, data: DataConfig, *, split: str, seed: int) -> None:
        """Read the first block. Raise `ValueError` or `FileNotFoundError` where it can't be read, or has no task."""
        self._env, self._data, self._split = env, data, split
        self._seed = f"{env.definition.id}/{seed}/{split}"
        self._blocks: dict[int, list[Task]] = {}
        self._reading: Iterator[Task] = iter(())
        self._next = 0
        self._count: int | None = None
        drops = split == "train" and env.config.drop_overlap != "none"
        self._index = evaluation_index(env) if drops else None
        if not self._block(0):
            raise ValueError(f"{data.name} has no {split} rows; give more of them, or another split")

    @property
    def size(self) -> int | None:
        """How many tasks there are: not known of rows that are not all read."""
        return None

    def task(self, index: int) -> Task:
        """Return the task at `index`, counted round and round."""
        while True:
            epoch, place = (0, index) if self._count is None else divmod(index, self._count)
            number, offset = divmod(place, BLOCK)
            block = self._block(number)
            if offset < len(block):
                return self._order(block, epoch, number)[offset]
            assert self._count is not None  # the rows have ended before this place

    def _order(self, block: list[Task], epoch: int, number: int) -> list[Task]:
        if self._split != "train":
            return block
        return random.Random(f"{self._seed}/{epoch}/{number}").sample(block, len(block))

    def _block(self, number: int) -> list[Task]:
        """Return a block, the last one shorter and those behind it empty."""
        if number in self._blocks:
            return self._blocks[number]
        if number < self._next or self._next == 0:
            self._reading, self._next = self._rows(), 0
        block: list[Task] = []
        while self._next <= number:
            block = list(islice(self._reading, BLOCK))
            if len(block) < BLOCK and self._count is None:
                self._count = self._next * BLOCK + len(block)
            if not block:
                return block
            self._next += 1
        self._blocks[number] = block
        for old in list(self._blocks)[:-HELD]:
            del self._blocks[old]
        return block

    def _rows(self) -> Iterator[Task]:
        for each in row_tasks(self._env, self._data):
            if each.heldout == (self._split == "heldout") and not self._overlaps(each.task):
                yield each.task

    def _overlaps(self, task: Task) -> bool:
        return self._index is not None and self._index.overlaps(prompt_words(task.messages), "exact")

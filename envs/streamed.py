"""Tasks of rows that are read as they are needed."""

from collections.abc import Iterator

from temper.envs.binding import BoundEnv
from temper.envs.core.task import Task
from temper.envs.data.blocks import Blocks
from temper.envs.data.config import DataConfig
from temper.envs.data.overlap import prompt_text
from temper.envs.task_rows import evaluation_index, row_tasks


class StreamedSource:
    """The tasks of a split in the order of their rows, of training shuffled inside each block by the seed, over and over.

    Rows that repeat others are not noticed.
    """

    def __init__(self, env: BoundEnv, data: DataConfig, *, split: str, seed: int) -> None:
        """Read the first block. Raise `ValueError` or `FileNotFoundError` where it can't be read, or has no task."""
        self._env, self._data, self._split = env, data, split
        drops = split == "train" and env.config.drop_overlap != "none"
        self._index = evaluation_index(env) if drops else None
        order = f"{env.definition.id}/{seed}/{split}" if split == "train" else None
        self._blocks = Blocks(self._rows, seed=order)
        if self._blocks.empty:
            raise ValueError(f"{data.name} has no {split} rows; give more of them, or another split")

    @property
    def size(self) -> int | None:
        """How many tasks there are: not known of rows that are not all read."""
        return None

    def task(self, index: int) -> Task:
        """Return the task at `index`, counted round and round."""
        return self._blocks.item(index)

    def _rows(self) -> Iterator[Task]:
        for each in row_tasks(self._env, self._data):
            if each.heldout == (self._split == "heldout") and not self._overlaps(each.task):
                yield each.task

    def _overlaps(self, task: Task) -> bool:
        return self._index is not None and self._index.overlaps(
            prompt_text(task.messages), self._env.config.drop_overlap
        )

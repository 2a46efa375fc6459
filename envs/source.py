"""Where tasks come from: generated without end, or the rows of a JSONL file; split into training and held-out.

The split is a hash of the prompt, so that no prompt is ever on both sides, whatever the seed, count or file order.
"""

import hashlib
import json
import logging
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from envs.binding import BoundEnv
from envs.core.failure import in_words
from envs.core.jsonl import read_rows
from envs.core.row_format import load_row, own_id
from envs.core.task import Task, TaskSource

LOG = logging.getLogger(__name__)
SPLITS = ("train", "heldout")
HELDOUT_ONE_IN = 8
MAX_DRAWS = 10_000
REPEATS = 64
"""A source that repeats itself so often in a row is taken to have no other tasks."""


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def content_key(task: Task) -> str:
    """Return a short hash of everything that makes the task: prompt, tools and verifier data."""
    return _digest([task.messages, task.tools, task.spec])[:16]


def split_of(task: Task) -> str:
    """Return the split of a task by the hash of its prompt messages: one prompt in eight is held out."""
    return "train" if int(_digest(task.messages), 16) % HELDOUT_ONE_IN else "heldout"


class GeneratedSource:
    """Generated tasks: the task at `index` depends on environment, seed, split and index only."""

    def __init__(self, env: BoundEnv, *, split: str, seed: int) -> None:
        if env.definition.generate is None:
            raise ValueError(f"environment {env.name!r} generates no tasks; give envs.{env.name}.data, a JSONL file")
        self.env, self.split, self.seed = env, split, seed
        self.generate = env.definition.generate
        self._made(0)

    def task(self, index: int) -> Task:
        """Return the task at `index`. One that can't be made, after the first, is left to its episodes as their fault."""
        try:
            return self._made(index)
        except (Exception, SystemExit) as error:
            nothing = ({"role": "user", "content": "?"},)
            fault = f"task {index} can't be made: {in_words(error)}"
            return Task(env=self.env.ref, key=f"fault-{index}", messages=nothing, spec={}, fault=fault)

    def _made(self, index: int) -> Task:
        """Redraw until the prompt falls into the split."""
        env_id, level = self.env.definition.id, self.env.config.level
        rng = random.Random(f"{env_id}/{self.seed}/{self.split}/{index}")
        for _ in range(MAX_DRAWS):
            made = self.generate(rng, level)
            if split_of(made) == self.split:
                return self.env.task(made, content_key(made))
        raise ValueError(f"{env_id} level {level} has no {self.split} task in {MAX_DRAWS} draws")


class FileSource:
    """The tasks of a JSONL file that fall into the split, in an order shuffled by the seed, over and over.

    `skipped` counts the bad rows of the file, `duplicates` the rows whose key had been seen before.
    """

    def __init__(self, env: BoundEnv, *, split: str, seed: int) -> None:
        data = env.config.data
        tasks, self.skipped = file_tasks(env)
        unique = {task.key: task for task in tasks}
        self.duplicates = len(tasks) - len(unique)
        if self.duplicates:
            LOG.warning("%s: %d rows repeat the key of another row and are left out", data, self.duplicates)
        self.tasks = [task for task in unique.values() if split_of(task) == split]
        if not self.tasks:
            raise ValueError(f"{data} has no {split} rows among {len(unique)}; give a larger file")
        random.Random(f"{env.definition.id}/{seed}/{split}").shuffle(self.tasks)

    def task(self, index: int) -> Task:
        """Return the task at `index`, counted round and round."""
        return self.tasks[index % len(self.tasks)]


def distinct(source: TaskSource, count: int) -> list[Task]:
    """Return the first `count` tasks whose keys differ; fewer where `REPEATS` in a row have nothing new."""
    found: dict[str, Task] = {}
    index = repeats = 0
    while len(found) < count and repeats < REPEATS:
        task = source.task(index)
        repeats = repeats + 1 if task.key in found else 0
        found.setdefault(task.key, task)
        index += 1
    return list(found.values())


def file_tasks(env: BoundEnv) -> tuple[list[Task], int]:
    """Return all tasks of an environment's data file, of both splits, and how many bad rows were skipped."""
    path = Path(str(env.config.data))
    if env.definition.beside is not None:
        env = replace(env, definition=env.definition.beside(path.parent))

    def parse(row: dict[str, Any], _number: int) -> Task:
        made = load_row(env.definition.formats, row, name=env.config.format)
        own = own_id(row)
        return env.task(made, content_key(made) if own is None else str(own))

    return read_rows(path, parse=parse, on_error=env.config.on_error)


def open_source(env: BoundEnv, *, split: str, seed: int) -> TaskSource:
    """Return the source of an environment's tasks. Raises `ValueError` or `FileNotFoundError` where it can't give any."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; it must be one of {', '.join(SPLITS)}")
    source = GeneratedSource if env.config.data is None else FileSource
    return source(env, split=split, seed=seed)

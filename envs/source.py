"""Where tasks come from: generated without end, or the rows of a JSONL file; split into training and held-out.

The split is a hash of the prompt, so that no prompt is ever on both sides, whatever the seed, count or file order.
"""

import hashlib
import json
import logging
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envs.catalog import Environment, environment
from envs.rows import read_rows
from envs.task import Task, TaskSource

LOG = logging.getLogger(__name__)
SPLITS = ("train", "heldout")
HELDOUT_ONE_IN = 8
MAX_DRAWS = 10_000


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """One environment of a mixture."""

    share: float = 1.0  # relative share of the groups
    data: str | None = None  # JSONL file of real tasks; null for generated tasks
    level: int = 1  # difficulty of generated tasks, from 1
    reasoning: bool = True  # whether the model thinks before it answers
    on_error: str = "raise"  # what a bad row of the data file does: raise or skip
    max_turns: int = 4  # assistant turns after which a multi-turn episode is cut off

    def __post_init__(self) -> None:
        if not self.share >= 0:
            raise ValueError(f"share is {self.share}; it must be 0 or more")
        if self.level < 1 or self.max_turns < 1:
            raise ValueError(f"level ({self.level}) and max_turns ({self.max_turns}) must be 1 or more")
        if self.on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is {self.on_error!r}; it must be raise or skip")


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def content_key(task: Task) -> str:
    """A short hash of everything that makes the task: prompt, tools and verifier data."""
    return _digest([task.messages, task.tools, task.spec])[:16]


def split_of(task: Task) -> str:
    """The split of a task by the hash of its prompt messages: one prompt in eight is held out."""
    return "train" if int(_digest(task.messages), 16) % HELDOUT_ONE_IN else "heldout"


class GeneratedSource:
    """Generated tasks: the task at `index` depends on environment, seed, split and index only."""

    def __init__(self, env: Environment, config: EnvConfig, *, split: str, seed: int) -> None:
        self.env, self.config, self.split, self.seed = env, config, split, seed
        self.task(0)

    def task(self, index: int) -> Task:
        """The task at `index`; redraws until the prompt falls into the split."""
        rng = random.Random(f"{self.env.id}/{self.seed}/{self.split}/{index}")
        for _ in range(MAX_DRAWS):
            task = self.env.generate(rng, self.config.level)
            if split_of(task) == self.split:
                return _configured(replace(task, key=content_key(task)), self.config)
        raise ValueError(f"{self.env.id} level {self.config.level} has no {self.split} task in {MAX_DRAWS} draws")


class FileSource:
    """The tasks of a JSONL file that fall into the split, in an order shuffled by the seed, over and over.

    `skipped` counts the bad rows of the file, `duplicates` the rows whose key had been seen before.
    """

    def __init__(self, env: Environment, config: EnvConfig, *, path: Path, split: str, seed: int) -> None:
        def parse(row: dict[str, Any], _number: int) -> Task:
            own_id = row.get("task_id", row.get("id"))
            task = env.load(row, "row")
            return replace(task, key=content_key(task) if own_id is None else str(own_id))

        tasks, self.skipped = read_rows(path, parse=parse, on_error=config.on_error)
        unique = {task.key: task for task in tasks}
        self.duplicates = len(tasks) - len(unique)
        if self.duplicates:
            LOG.warning("%s: %d rows repeat the key of another row and are left out", path, self.duplicates)
        self.tasks = [_configured(task, config) for task in unique.values() if split_of(task) == split]
        if not self.tasks:
            raise ValueError(f"{path} has no {split} rows among {len(unique)}; give a larger file")
        random.Random(f"{env.id}/{seed}/{split}").shuffle(self.tasks)

    def task(self, index: int) -> Task:
        """The task at `index`, counted round and round."""
        return self.tasks[index % len(self.tasks)]


def _configured(task: Task, config: EnvConfig) -> Task:
    return replace(task, reasoning=config.reasoning, spec=task.spec | {"max_turns": config.max_turns})


def open_source(env_id: str, config: EnvConfig, *, split: str, seed: int) -> TaskSource:
    """The source of one environment's tasks. ValueError or FileNotFoundError where it can't give any."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; it must be one of {', '.join(SPLITS)}")
    env = environment(env_id)
    if config.data is None:
        return GeneratedSource(env, config, split=split, seed=seed)
    return FileSource(env, config, path=Path(config.data), split=split, seed=seed)

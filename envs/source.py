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

from envs.catalog import configured
from envs.coding.exercises import CREDITS
from envs.core.definition import EnvDefinition
from envs.core.failure import in_words
from envs.core.jsonl import OnError, read_rows
from envs.core.row_format import load_row, own_id
from envs.core.setting import identity, running, scheduled
from envs.core.task import Task, TaskSource
from envs.core.thinking_mode import OFF, UNLIMITED
from envs.tools.shared_tools import RUN_PROGRAMS, lent
from envs.tools.text_tool import schemas

LOG = logging.getLogger(__name__)
SPLITS = ("train", "heldout")
HELDOUT_ONE_IN = 8
MAX_DRAWS = 10_000
REPEATS = 64
"""A source that repeats itself so often in a row is taken to have no other tasks."""
THREADS = 256


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """One environment of a mixture."""

    share: float = scheduled(1.0)
    """Relative share of the groups."""
    kind: str | None = identity(None)
    """The environment that this is, where the name given to it is not its id."""
    options: dict[str, Any] = identity({})
    """Which member of a family of environments."""
    data: str | None = identity(None)
    """JSONL file of real tasks; null for generated tasks."""
    format: str | None = identity(None)
    """Format of its rows; null finds it out."""
    level: int = identity(1)
    """Difficulty of generated tasks, from 1."""
    thinking: bool = identity(True)
    """Whether the model thinks before it answers."""
    on_error: OnError = identity("raise")
    """What a bad row of the data file does: raise or skip."""
    max_turns: int | None = identity(None)
    """Assistant turns after which an episode is cut off; null is the environment's own."""
    credit: str = identity("all")
    """Code: what a program is worth that passes some tests: all (nothing) or fraction (their share)."""
    tools: list[str] = identity([])
    """Tools lent to it: calculator, python."""
    weights: dict[str, float] = identity({})
    """Weight of each reward part; empty is correctness alone."""
    length_limit: int | None = identity(None)
    """Characters of an episode from which the part `length` falls; null gives no part."""
    threads: int = running(THREADS)
    """Steps of it that a rollout worker runs at once; the others wait, off the clocks of their episodes."""

    def __post_init__(self) -> None:
        if not self.share >= 0:
            raise ValueError(f"share is {self.share}; it must be 0 or more")
        if self.length_limit is not None and self.length_limit < 1:
            raise ValueError(f"length_limit is {self.length_limit}; it must be 1 or more characters")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}; it must be 1 or more")
        lent(self.tools)
        if self.credit not in CREDITS:
            raise ValueError(f"credit is {self.credit!r}; it must be one of {', '.join(CREDITS)}")
        if self.level < 1 or (self.max_turns is not None and self.max_turns < 1):
            raise ValueError(f"level ({self.level}) and max_turns ({self.max_turns}) must be 1 or more")


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

    def __init__(self, env: EnvDefinition, name: str, config: EnvConfig, *, split: str, seed: int) -> None:
        if env.generate is None:
            raise ValueError(f"environment {name!r} generates no tasks; give envs.{name}.data, a JSONL file")
        self.env, self.name, self.config, self.split, self.seed = env, name, config, split, seed
        self.generate = env.generate
        self._made(0)

    def task(self, index: int) -> Task:
        """The task at `index`. One that can't be made, after the first, is left to its episodes as their fault."""
        try:
            return self._made(index)
        except (Exception, SystemExit) as error:
            nothing = ({"role": "user", "content": "?"},)
            fault = f"task {index} can't be made: {in_words(error)}"
            return Task(env=self.name, kind=self.env.id, key=f"fault-{index}", messages=nothing, spec={}, fault=fault)

    def _made(self, index: int) -> Task:
        """Redraws until the prompt falls into the split."""
        rng = random.Random(f"{self.env.id}/{self.seed}/{self.split}/{index}")
        for _ in range(MAX_DRAWS):
            task = self.generate(rng, self.config.level)
            if split_of(task) == self.split:
                return _configured(replace(task, key=content_key(task)), self.name, self.config)
        raise ValueError(f"{self.env.id} level {self.config.level} has no {self.split} task in {MAX_DRAWS} draws")


class FileSource:
    """The tasks of a JSONL file that fall into the split, in an order shuffled by the seed, over and over.

    `skipped` counts the bad rows of the file, `duplicates` the rows whose key had been seen before.
    """

    def __init__(self, env: EnvDefinition, name: str, config: EnvConfig, *, split: str, seed: int) -> None:
        tasks, self.skipped = file_tasks(env, name, config)
        unique = {task.key: task for task in tasks}
        self.duplicates = len(tasks) - len(unique)
        if self.duplicates:
            LOG.warning("%s: %d rows repeat the key of another row and are left out", config.data, self.duplicates)
        self.tasks = [task for task in unique.values() if split_of(task) == split]
        if not self.tasks:
            raise ValueError(f"{config.data} has no {split} rows among {len(unique)}; give a larger file")
        random.Random(f"{env.id}/{seed}/{split}").shuffle(self.tasks)

    def task(self, index: int) -> Task:
        """The task at `index`, counted round and round."""
        return self.tasks[index % len(self.tasks)]


def distinct(source: TaskSource, count: int) -> list[Task]:
    """The first `count` tasks whose keys differ; fewer where `REPEATS` in a row have nothing new."""
    found: dict[str, Task] = {}
    index = repeats = 0
    while len(found) < count and repeats < REPEATS:
        task = source.task(index)
        repeats = repeats + 1 if task.key in found else 0
        found.setdefault(task.key, task)
        index += 1
    return list(found.values())


def file_tasks(env: EnvDefinition, name: str, config: EnvConfig) -> tuple[list[Task], int]:
    """All tasks of an environment's data file, of both splits, and how many bad rows were skipped."""
    path = Path(str(config.data))
    env = env.beside(path.parent) if env.beside is not None else env

    def parse(row: dict[str, Any], _number: int) -> Task:
        task = load_row(env.formats, row, "row", name=config.format)
        own = own_id(row)
        return _configured(replace(task, key=content_key(task) if own is None else str(own)), name, config)

    return read_rows(path, parse=parse, on_error=config.on_error)


def _configured(task: Task, name: str, config: EnvConfig) -> Task:
    """The task under the name that the run gives to its environment, with the run's settings."""
    settings = {
        "max_turns": config.max_turns,
        "weights": config.weights,
        "length_limit": config.length_limit,
        "tools": config.tools,
        "credit": config.credit if config.credit != CREDITS[0] else None,
        "threads": config.threads if config.threads != THREADS else None,
    }
    given = {key: value for key, value in settings.items() if value}
    return replace(
        task,
        env=name,
        kind=task.kind,
        thinking=UNLIMITED if config.thinking else OFF,
        spec=task.spec | given,
        tools=(*task.tools, *schemas(lent(config.tools))),
    )


def env_named(name: str, config: EnvConfig) -> EnvDefinition:
    """The environment to which a run gives this name. Raises `ValueError` where there is none, or not with these options."""
    return configured(config.kind or name, config.options)


def runs_programs(name: str, config: EnvConfig) -> bool:
    """Whether an environment runs what the model writes, by itself or by a tool that it was lent."""
    return env_named(name, config).runs_programs or not RUN_PROGRAMS.isdisjoint(config.tools)


def open_source(name: str, config: EnvConfig, *, split: str, seed: int) -> TaskSource:
    """The source of one environment's tasks. ValueError or FileNotFoundError where it can't give any."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; it must be one of {', '.join(SPLITS)}")
    env = env_named(name, config)
    for part in config.weights:
        if part not in env.parts:
            raise ValueError(f"envs.{name}.weights.{part}: {name} has no such part; it has {', '.join(env.parts)}")
    source = GeneratedSource if config.data is None else FileSource
    return source(env, name, config, split=split, seed=seed)

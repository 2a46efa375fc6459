"""The tasks of a run: generated without end, or rows of data, split into training and held-out tasks.

By default the split is a hash of the prompt. A prompt is never on both sides, for any seed, count or order of rows.
"""

import json
import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Protocol

from temper.envs.binding import BoundEnv
from temper.envs.core.errors import describe_error
from temper.envs.core.messages import SYSTEM_COLUMNS
from temper.envs.core.row_fields import is_given, unread_counts
from temper.envs.core.row_format import IDS, Row, field, gold, load_row, own_id
from temper.envs.core.task import Task, TaskSource
from temper.envs.data.blocks import BLOCK, Blocks
from temper.envs.data.config import DataConfig
from temper.envs.data.overlap import OverlapIndex, prompt_text
from temper.envs.data.repeats import SeenRows
from temper.envs.data.rows import Tally, data_files, read_usable_rows
from temper.envs.data.split import SPLITS, ReadRows, SplitTask, digest, split_of
from temper.envs.own_reward import ROW

LOG = logging.getLogger(__name__)
SLOW_LOAD_S = 10.0
"""Seconds of reading rows after which the log names the setting that shortens the start."""


def content_key(task: Task) -> str:
    """Return a short hash of a task's request, tools and verifier data."""
    return digest([task.request, task.tools, task.spec])[:16]


def data_of(env: BoundEnv) -> list[DataConfig]:
    return [data for data in (env.config.data, env.config.eval_data) if data is not None]


def data_of_split(env: BoundEnv, split: str) -> DataConfig | None:
    """Return the data with the rows of a split, or None if its tasks are generated."""
    if split == "heldout" and env.config.eval_data is not None:
        return env.config.eval_data
    return env.config.data


def read_all_rows(env: BoundEnv, data: DataConfig) -> ReadRows:
    """Return the tasks of all rows of `data`, which belongs to the environment. They are read once and cached."""
    setting = _setting(env, data)
    if setting not in env.rows:
        start_s = time.monotonic()
        found = env.rows[setting] = _collect(env, data)
        seconds = time.monotonic() - start_s
        if seconds > SLOW_LOAD_S and data is env.config.data:
            LOG.warning(
                "%s: %d rows took %.0f s; %s.streaming=true reads in blocks",
                data.name,
                len(found.tasks) + found.skipped,
                seconds,
                setting,
            )
    return env.rows[setting]


def read_first_rows(env: BoundEnv, data: DataConfig) -> ReadRows:
    """Return `read_all_rows`, or the first block of streamed ones, which is cached too."""
    if not data.streaming:
        return read_all_rows(env, data)
    block = f"{_setting(env, data)}, first block"
    if block not in env.rows:
        env.rows[block] = _collect(env, data, BLOCK)
    return env.rows[block]


def read_row_tasks(env: BoundEnv, data: DataConfig) -> Iterator[SplitTask]:
    """Yield the tasks of `data`, which belongs to the environment, row by row. Streamed rows are read again each time."""
    return _read(env, data, Tally()) if data.streaming else iter(read_all_rows(env, data).tasks)


def _collect(env: BoundEnv, data: DataConfig, most: int | None = None) -> ReadRows:
    tally, seen = Tally(), SeenRows()
    tasks = tuple(islice(_read(env, data, tally, seen), most))
    return ReadRows(tasks=tasks, skipped=tally.skipped, remarks=seen.remarks, unread=unread_counts(seen.unread))


def _read(env: BoundEnv, data: DataConfig, tally: Tally, seen: SeenRows | None = None) -> Iterator[SplitTask]:
    config, column = env.config, env.config.split.column
    try:
        if env.definition.in_folder is not None:
            env = replace(env, definition=env.definition.in_folder(data_files(data)[0].parent))
        met = False

        def parse(row: Row, number: int) -> SplitTask:
            nonlocal met
            met = met or column is None or column in row
            read = {*IDS, *SYSTEM_COLUMNS, *([] if column is None else [column])}
            made = load_row(env.definition.formats, row, name=data.format or config.format, read=read)
            expected = None if config.judge is None else config.judge.reference
            if expected is not None:
                gold(field(row, expected, object), expected)
            if config.reward is not None or expected is not None:
                made = replace(made, spec=made.spec | {ROW: json.loads(json.dumps(row, default=str))})
                read.update(row)
            if seen is not None:
                seen.add_task(made, number, unread=[name for name in row.keys() - read if is_given(row[name])])
            own = own_id(row)
            task = env.task(made, content_key(made) if own is None else str(own))
            return SplitTask(task=task, heldout=_heldout(row, task, env, data), row=number + 1)

        yield from read_usable_rows(data, parse=parse, on_error=config.on_error, tally=tally)
        if not met:
            raise ValueError(f"{data.name}: no row has the split.column {column!r}")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{_setting(env, data)}: {error}; set null for generated tasks") from error


def build_evaluation_index(env: BoundEnv) -> OverlapIndex:
    """Return an index of the environment's evaluation prompts, to compare training prompts with."""
    data = data_of_split(env, "heldout")
    assert data is not None
    heldout = (each.task for each in read_row_tasks(env, data) if each.heldout)
    return OverlapIndex((task.key, prompt_text(task.request)) for task in heldout)


def _heldout(row: Row, task: Task, env: BoundEnv, data: DataConfig) -> bool:
    """Return whether a row is held out: by its file or column, otherwise by its prompt. A row without the column is not."""
    if env.config.eval_data is not None:
        return data is env.config.eval_data
    split = env.config.split
    if split.column is None:
        return split_of(task, split.share) == "heldout"
    return str(row.get(split.column)) in split.heldout


def _setting(env: BoundEnv, data: DataConfig) -> str:
    return f"envs.{env.name}.{'eval_data' if data is env.config.eval_data else 'data'}"


class StreamedSource:
    """The tasks of a split in row order, repeated without end. Training tasks are shuffled by the seed within each block.

    Duplicate rows are not detected.
    """

    size: int | None = None

    def __init__(self, env: BoundEnv, data: DataConfig, *, split: str, seed: int) -> None:
        """Read the first block. Raise `ValueError` or `FileNotFoundError` if it can't be read or has no task."""
        self._env, self._data, self._split = env, data, split
        drops = split == "train" and env.config.drop_overlap != "none"
        self._index = build_evaluation_index(env) if drops else None
        order = f"{env.definition.id}/{seed}/{split}" if split == "train" else None
        self._blocks = Blocks(self._rows, seed=order)
        if self._blocks.is_empty:
            raise ValueError(f"{data.name} has no {split} rows; add some, or change the split")

    def task(self, index: int) -> Task:
        return self._blocks.item(index)

    def _rows(self) -> Iterator[Task]:
        index, by = self._index, self._env.config.drop_overlap
        for each in read_row_tasks(self._env, self._data):
            if each.heldout != (self._split == "heldout"):
                continue
            if index is None or not index.has_overlap(prompt_text(each.task.request), by):
                yield each.task


MAX_DRAWS = 10_000
ALIKE = 255
"""Equal draws in a row after which the generator is taken to have only one prompt."""
REPEATS = 64
"""Repeated tasks in a row after which a source is taken to have no others."""


class SizedSource(TaskSource, Protocol):
    """A source that may know its number of tasks."""

    @property
    def size(self) -> int | None: ...


class GeneratedSource:
    """Generated tasks. The task at `index` depends only on environment, seed, split and index."""

    size: int | None = None

    def __init__(self, env: BoundEnv, *, split: str, seed: int) -> None:
        if env.definition.generate is None:
            raise ValueError(f"environment {env.name!r} generates no tasks; set envs.{env.name}.data or --data")
        self.env, self.split, self.seed = env, split, seed
        self.generate = env.definition.generate
        self._made(0)

    def task(self, index: int) -> Task:
        try:
            return self._made(index)
        except (Exception, SystemExit) as error:
            nothing = ({"role": "user", "content": "?"},)
            fault = f"task {index} can't be made: {describe_error(error)}"
            return Task(env=self.env.ref, key=f"fault-{index}", messages=nothing, spec={}, fault=fault)

    def _made(self, index: int) -> Task:
        env_id, level = self.env.definition.id, self.env.config.level
        rng = random.Random(f"{env_id}/{self.seed}/{self.split}/{index}")
        prompts = set()
        for draw in range(MAX_DRAWS):
            made = self.generate(rng, level)
            if split_of(made, self.env.config.split.share) == self.split:
                return self.env.task(made, made.key or content_key(made))
            prompts.add(prompt_text(made.request))
            if draw >= ALIKE and len(prompts) == 1:
                break
        few = f"{len(prompts)} different prompts in {draw + 1} draws"
        raise ValueError(
            f"{env_id} level {level} has no {self.split} task: {few}; set options with more prompts, or change "
            f"envs.{self.env.name}.split.share (near 0 holds nothing out)"
        )


class RowSource:
    """The tasks of all rows of a split, repeated without end.

    Training rows are shuffled by the seed anew in each epoch, rows held out by hash only once. Of equal rows only one
    stays. Rows held out by file or column are a benchmark, so they keep their order, each once. If a row has another row's
    key, it gets a new one.
    """

    def __init__(self, env: BoundEnv, data: DataConfig, *, split: str, seed: int) -> None:
        heldout, read = split == "heldout", read_all_rows(env, data)
        rows = [each.task for each in read.tasks if each.heldout == heldout]
        is_benchmark = heldout and (env.config.eval_data is not None or env.config.split.column is not None)
        kept = rows if is_benchmark else drop_equal_tasks(rows)
        if named := len(kept) - len({task.key for task in kept}):
            LOG.warning("%s: renamed the duplicate keys of %d rows", data.name, named)
        self.tasks = number_equal_keys(kept)
        if not heldout and env.config.drop_overlap != "none":
            self.tasks = _without_overlap(self.tasks, env)
        if not self.tasks:
            raise ValueError(f"{data.name} has no {split} rows among {len(read.tasks)}; use a larger file")
        self.size: int | None = len(self.tasks)
        self._seed = f"{env.definition.id}/{seed}/{split}"
        self._reshuffles = not heldout
        self._order = lru_cache(maxsize=2)(self._shuffled)  # draws of two epochs overlap
        if not is_benchmark:
            random.Random(self._seed).shuffle(self.tasks)

    def task(self, index: int) -> Task:
        epoch, place = divmod(index, len(self.tasks))
        return self.tasks[self._order(epoch)[place] if epoch and self._reshuffles else place]

    def _shuffled(self, epoch: int) -> list[int]:
        """Return the order of an epoch after the first, which keeps the order of the tasks."""
        order = list(range(len(self.tasks)))
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order


def _without_overlap(tasks: list[Task], env: BoundEnv) -> list[Task]:
    index, by = build_evaluation_index(env), env.config.drop_overlap
    return [task for task in tasks if not index.has_overlap(prompt_text(task.request), by)]


def distinct_tasks(source: SizedSource, count: int | None) -> list[Task]:
    """Return the first `count` tasks with distinct keys, or fewer after `REPEATS` repetitions in a row. None returns all.

    Raise `ValueError` for all tasks of a source of unknown size.
    """
    if count is None:
        if source.size is None:
            raise ValueError(
                "the tasks have no end: they are generated, or streamed together with training rows; set a number"
            )
        count = source.size
    found: dict[str, Task] = {}
    index = repeats = 0
    while len(found) < count and repeats < REPEATS:
        task = source.task(index)
        repeats = repeats + 1 if task.key in found else 0
        found.setdefault(task.key, task)
        index += 1
    return list(found.values())


def open_source(env: BoundEnv, *, split: str, seed: int) -> SizedSource:
    """Return the source of an environment's tasks. Raise `ValueError` or `FileNotFoundError` if it has none."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; it must be one of {', '.join(SPLITS)}")
    data = data_of_split(env, split)
    if data is None:
        return GeneratedSource(env, split=split, seed=seed)
    if data.streaming:
        return StreamedSource(env, data, split=split, seed=seed)
    return RowSource(env, data, split=split, seed=seed)


def drop_equal_tasks(tasks: list[Task]) -> list[Task]:
    times = Counter(task.key for task in tasks)
    unique = {(task.key, content_key(task) if times[task.key] > 1 else ""): task for task in tasks}
    return list(unique.values())


def number_equal_keys(tasks: list[Task]) -> list[Task]:
    """Return all tasks in order. A repeated key gets a unique number."""
    taken = {task.key for task in tasks}
    times: Counter[str] = Counter()
    named = []
    for task in tasks:
        times[task.key] += 1
        if times[task.key] == 1:
            named.append(task)
            continue
        while (key := f"{task.key}#{times[task.key]}") in taken:
            times[task.key] += 1
        taken.add(key)
        named.append(replace(task, key=key))
    return named

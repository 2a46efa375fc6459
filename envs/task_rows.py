"""The rows of an environment's data as its tasks, each on its side of the split."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from envs.binding import BoundEnv
from envs.core.row_format import Row, load_row, own_id
from envs.core.task import Task
from envs.data.config import DataConfig
from envs.data.overlap import OverlapIndex, prompt_text
from envs.data.rows import Tally, data_files, usable_rows
from envs.data.split import digest, split_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTask:
    """A task, and whether it is held out."""

    task: Task
    heldout: bool


def content_key(task: Task) -> str:
    """Return a short hash of everything that makes the task: prompt, tools and verifier data."""
    return digest([task.messages, task.tools, task.spec])[:16]


def data_of(env: BoundEnv) -> list[DataConfig]:
    """Return the data of an environment: that of its tasks, and that of evaluation, as far as it has them."""
    return [data for data in (env.config.data, env.config.eval_data) if data is not None]


def holds(env: BoundEnv, split: str) -> DataConfig | None:
    """Return the data that holds the rows of a split; None where its tasks are generated."""
    if split == "heldout" and env.config.eval_data is not None:
        return env.config.eval_data
    return env.config.data


def row_tasks(env: BoundEnv, data: DataConfig, tally: Tally | None = None) -> Iterator[SplitTask]:
    """Yield the tasks of `data`, one of the environment's own, row after row, as `usable_rows` says."""
    config = env.config
    if env.definition.beside is not None:
        env = replace(env, definition=env.definition.beside(_folder(data)))

    def parse(row: Row, _number: int) -> SplitTask:
        heldout = _heldout(row, env, data)
        made = load_row(env.definition.formats, row, name=data.format or config.format)
        own = own_id(row)
        task = env.task(made, content_key(made) if own is None else str(own))
        by_hash = split_of(task, config.split.share) == "heldout"
        return SplitTask(task=task, heldout=by_hash if heldout is None else heldout)

    return usable_rows(data, parse=parse, on_error=config.on_error, tally=tally)


def evaluation_index(env: BoundEnv) -> OverlapIndex:
    """Return the evaluation prompts of an environment that has rows of them, for training prompts to be compared with."""
    data = holds(env, "heldout")
    assert data is not None
    heldout = (each.task for each in row_tasks(env, data) if each.heldout)
    return OverlapIndex((task.key, prompt_text(task.messages)) for task in heldout)


def _heldout(row: Row, env: BoundEnv, data: DataConfig) -> bool | None:
    """Return whether a row is held out, by its file or its column; None where its prompt decides."""
    if env.config.eval_data is not None:
        return data is env.config.eval_data
    column = env.config.split.column
    if column is None:
        return None
    if column not in row:
        raise ValueError(f"split.column names {column!r}; the row has {sorted(row)}")
    return str(row[column]) in env.config.split.heldout


def _folder(data: DataConfig) -> Path:
    return data_files(data)[0].parent

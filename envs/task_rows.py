"""The rows of an environment's data as its tasks, each on its side of the split."""

from collections.abc import Iterator
from dataclasses import replace

from temper.envs.binding import BoundEnv
from temper.envs.core.row_format import Row, load_row, own_id
from temper.envs.core.task import Task
from temper.envs.data.config import DataConfig
from temper.envs.data.overlap import OverlapIndex, prompt_text
from temper.envs.data.rows import Tally, data_files, usable_rows
from temper.envs.data.split import ReadRows, SplitTask, digest, split_of


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


def all_rows(env: BoundEnv, data: DataConfig) -> ReadRows:
    """Return the tasks of all rows of `data`, one of the environment's own, which are read once for all who ask.

    Raise as `usable_rows` does.
    """
    setting = _setting(env, data)
    if setting not in env.rows:
        tally = Tally()
        env.rows[setting] = ReadRows(tasks=tuple(_read(env, data, tally)), skipped=tally.skipped)
    return env.rows[setting]


def row_tasks(env: BoundEnv, data: DataConfig) -> Iterator[SplitTask]:
    """Yield the tasks of `data`, one of the environment's own, row after row; streamed ones are read anew. Raise likewise."""
    return _read(env, data, Tally()) if data.streaming else iter(all_rows(env, data).tasks)


def _read(env: BoundEnv, data: DataConfig, tally: Tally) -> Iterator[SplitTask]:
    config, column = env.config, env.config.split.column
    try:
        if env.definition.beside is not None:
            env = replace(env, definition=env.definition.beside(data_files(data)[0].parent))
        met = False

        def parse(row: Row, _number: int) -> SplitTask:
            nonlocal met
            met = met or column is None or column in row
            made = load_row(env.definition.formats, row, name=data.format or config.format)
            own = own_id(row)
            task = env.task(made, content_key(made) if own is None else str(own))
            return SplitTask(task=task, heldout=_heldout(row, task, env, data))

        yield from usable_rows(data, parse=parse, on_error=config.on_error, tally=tally)
        if not met:
            raise ValueError(f"{data.name}: split.column names {column!r}, which no row has")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{_setting(env, data)}: {error}; or null for generated tasks") from error


def evaluation_index(env: BoundEnv) -> OverlapIndex:
    """Return the evaluation prompts of an environment that has rows of them, for training prompts to be compared with."""
    data = holds(env, "heldout")
    assert data is not None
    heldout = (each.task for each in row_tasks(env, data) if each.heldout)
    return OverlapIndex((task.key, prompt_text(task.messages)) for task in heldout)


def _heldout(row: Row, task: Task, env: BoundEnv, data: DataConfig) -> bool:
    """Return whether a row is held out: by its file or its column, else by its prompt. A row without the column is not."""
    if env.config.eval_data is not None:
        return data is env.config.eval_data
    split = env.config.split
    if split.column is None:
        return split_of(task, split.share) == "heldout"
    return str(row.get(split.column)) in split.heldout


def _setting(env: BoundEnv, data: DataConfig) -> str:
    return f"envs.{env.name}.{'eval_data' if data is env.config.eval_data else 'data'}"

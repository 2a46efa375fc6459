"""Tasks of the commands without a run: rows of a data file by key, or generated tasks."""

import random
from dataclasses import replace

from temper.envs.core.definition import EnvDefinition
from temper.envs.core.row_format import Row, load_row, own_id
from temper.envs.core.task import Task
from temper.envs.data.config import DataConfig
from temper.envs.data.rows import data_files, read_rows
from temper.envs.source import content_key, drop_equal_tasks, number_equal_keys


def read_tasks(data: DataConfig, env: EnvDefinition, *, row_format: str | None = None) -> dict[str, Task]:
    """Read the task of every row by its key: the row's id, otherwise its 0-based number, as text.

    A repeated key gets a number, as in a run. Raise `ValueError` with the place of a bad row.
    """
    env = env.in_folder(data_files(data)[0].parent) if env.in_folder is not None else env
    ref = env.ref()
    if not env.formats:
        raise ValueError(f"environment {env.id!r} reads no data; remove --data")

    def parse(row: Row, number: int) -> Task:
        own = own_id(row)
        key = str(number if own is None else own)
        return replace(load_row(env.formats, row, name=data.format or row_format), key=key, env=ref)

    tasks, _ = read_rows(data, parse=parse, on_error="raise")
    return {task.key: task for task in number_equal_keys(drop_equal_tasks(tasks))}


def generate_tasks(env: EnvDefinition, count: int, *, seed: int) -> list[Task]:
    if env.generate is None:
        raise ValueError(f"environment {env.id!r} generates no tasks; give --data FILE")
    ref = env.ref()
    made = (env.generate(random.Random(f"{seed}/{index}"), 1) for index in range(count))
    return [replace(task, env=ref, key=task.key or content_key(task)) for task in made]

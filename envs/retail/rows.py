"""Rows of tau-bench's retail domain as tasks: the customer's request, and the reference actions.

The database is in a folder that is configured once. A task carries its path in the options of its environment.
"""

from pathlib import Path
from typing import Any

from temper.envs.core.row_format import Row, field
from temper.envs.core.task import Task
from temper.envs.retail.database import Database, open_database
from temper.envs.retail.tools import TOOLS, Action


def load(row: Row, *, folder: Path) -> Task:
    """Make a task of a row: `user_id`, `instruction`, `actions` (`name`, `kwargs`) and `outputs`, which the agent must
    state.
    """
    folder = folder.resolve()
    records = open_database(folder).records
    user_id, outputs = field(row, "user_id", str), field(row, "outputs", list)
    if user_id not in records.tables["users"]:
        raise ValueError(f"field 'user_id' is {user_id!r}, which is not in {folder / 'users.json'}")
    if not all(isinstance(output, str) for output in outputs):
        raise ValueError(f"field 'outputs' must hold texts, not {outputs!r:.80}")
    actions = [_action(action) for action in field(row, "actions", list)]
    message = {"role": "user", "content": field(row, "instruction", str)}
    spec = {"user_id": user_id, "actions": actions, "outputs": outputs}
    return Task(messages=({"role": "system", "content": records.policy}, message), spec=spec, tools=records.tools)


def _action(action: Any) -> Action:
    match action:
        case {"name": str(name), "kwargs": dict(arguments)} if name in TOOLS:
            return {"name": name, "arguments": arguments}
    raise ValueError(
        f"field 'actions' must hold calls with 'name' and 'kwargs', not {action!r:.120}; "
        f"use the tools {', '.join(TOOLS)}"
    )


def database_of(task: Task) -> Database:
    """Return the initial database of a task. Raise `ValueError` if its folder can't be read."""
    return open_database(Path(task.env.options["database"]))

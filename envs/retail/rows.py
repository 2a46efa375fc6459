"""Rows of the shop's tasks (tau-bench, retail): what a user wants, and the calls that do it.

The database lies in a folder of its own, which is named once: `load_from(folder, row)`. What a task carries is the path
of the folder, among the options of its environment.
"""

from pathlib import Path
from typing import Any

from envs.core.row_format import field
from envs.core.task import Task
from envs.retail.database import Shop, open_shop
from envs.retail.tools import TOOLS

USER_REPLIES = 1
MAX_TURNS = 30
Action = dict[str, Any]
"""A call as `{"name", "arguments"}`."""


def load_from(folder: Path, row: dict[str, Any]) -> Task:
    """Make a task of a row: `user_id`, `instruction`, `actions` (`name`, `kwargs`) and `outputs`, which must be said."""
    shop = open_shop(folder.resolve())
    user_id, outputs = field(row, "user_id", str), field(row, "outputs", list)
    if user_id not in shop.users:
        raise ValueError(f"field 'user_id' is {user_id!r}, whom {folder.resolve() / 'users.json'} does not have")
    if not all(isinstance(output, str) for output in outputs):
        raise ValueError(f"field 'outputs' must hold texts, not {outputs!r:.80}")
    actions = [_action(action) for action in field(row, "actions", list)]
    messages = ({"role": "system", "content": shop.policy}, {"role": "user", "content": field(row, "instruction", str)})
    spec = {"user_id": user_id, "actions": actions, "outputs": outputs}
    return Task(messages=messages, spec=spec, tools=shop.tools)


def _action(action: Any) -> Action:
    match action:
        case {"name": str(name), "kwargs": dict(arguments)} if name in TOOLS:
            return {"name": name, "arguments": arguments}
    raise ValueError(
        f"field 'actions' must hold calls with 'name' and 'kwargs', not {action!r:.120}; the tools are {', '.join(TOOLS)}"
    )


def shop_of(task: Task) -> Shop:
    """Return the shop in which a task plays. Raise `ValueError` where its folder can't be read."""
    return open_shop(Path(task.env.options["database"]))


def says(text: str, output: str) -> bool:
    """Tell whether a text holds an output, commas and letter case ignored."""
    return output.replace(",", "").lower() in text.replace(",", "").lower()

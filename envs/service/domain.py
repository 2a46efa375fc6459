"""One kind of service and its tasks: the customer's request, and the reference calls.

The database is in a folder that is configured once. A task carries its path in the options of its environment.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from temper.envs.core.row_format import Row, field
from temper.envs.core.task import Task
from temper.envs.service.records import Database
from temper.envs.service.tools import Action, ToolSet

MAX_TURNS = 30
MANY_NUMBERS = 20
"""Distinct numbers that an agent may write besides the outputs. More count as guesses."""
LIST_MARK = re.compile(r"^[ \t]*(?:[-*][ \t]+)?\d{1,3}[.)][ \t]+(?=\S)", re.MULTILINE)
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
NUMBER = re.compile(r"(?<![\w#.])\d{1,6}(?:\.\d+)?(?!\w|\.\d)")
"""Amounts and counts, but no ids of orders and items, which are longer or have a mark."""
D = TypeVar("D", bound=Database[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain(Generic[D]):
    """The parts that distinguish services."""

    id: str
    entry_point: str
    """Its environment as `module:Class`."""
    tables: tuple[str, ...]
    """The names of its tables, including `users`."""
    tools: ToolSet
    fresh: Callable[[Path], D]
    """Returns an unchanged database of the records of a folder. Raises `ValueError` if it can't be read."""
    further: Callable[[D, str], Action]
    """Returns an action that changes the current database for this user."""

    def load(self, row: Row, *, folder: Path) -> Task:
        """Make a task of a row: `user_id`, `instruction`, `actions` (`name`, `kwargs`) and `outputs`, which the agent must
        state.
        """
        folder = folder.resolve()
        records = self.fresh(folder).records
        user_id, outputs = field(row, "user_id", str), field(row, "outputs", list)
        if user_id not in records.tables["users"]:
            raise ValueError(f"field 'user_id' is {user_id!r}, which is not in {folder / 'users.json'}")
        if not all(isinstance(output, str) for output in outputs):
            raise ValueError(f"field 'outputs' must hold texts, not {outputs!r:.80}")
        actions = [self._action(action) for action in field(row, "actions", list)]
        message = {"role": "user", "content": field(row, "instruction", str)}
        spec = {"user_id": user_id, "actions": actions, "outputs": outputs}
        return Task(messages=({"role": "system", "content": records.policy}, message), spec=spec, tools=records.tools)

    def _action(self, action: Any) -> Action:
        match action:
            case {"name": str(name), "kwargs": dict(arguments)} if name in self.tools.tools:
                return {"name": name, "arguments": arguments}
        raise ValueError(
            f"field 'actions' must hold calls with 'name' and 'kwargs', not {action!r:.120}; "
            f"use the tools {', '.join(self.tools.tools)}"
        )

    def fresh_for(self, task: Task) -> D:
        """Return the initial database of a task. Raise `ValueError` if its folder can't be read."""
        return self.fresh(Path(task.env.options["database"]))

    def after(self, task: Task, actions: list[Action]) -> D:
        database = self.fresh_for(task)
        self.tools.replay(database, actions)
        return database


def contains_output(text: str, output: str, *, part: bool = False) -> bool:
    """Return whether a text contains an output as whole words and numbers, ignoring commas, white space and case.

    With `part` any substring counts, as in tau-bench.
    """
    if part:
        return output.replace(",", "").lower() in text.replace(",", "").lower()
    return re.search(rf"(?<![\w.]){re.escape(_plain(output))}(?!\w|\.\d)", _plain(text)) is not None


def takes_parts(task: Task) -> bool:
    return task.env.options.get("outputs") == "part"


def outputs_in(text: str, outputs: list[str], *, part: bool = False) -> list[str]:
    """Return the outputs that a text contains. None with a digit counts if it has `MANY_NUMBERS` more numbers than
    outputs.
    """
    text = text if part else LIST_MARK.sub("", text)
    guessed = not part and len({*NUMBER.findall(_plain(text))}) > MANY_NUMBERS + len(outputs)
    return [
        output
        for output in outputs
        if contains_output(text, output, part=part) and not (guessed and re.search(r"\d", output))
    ]


def _plain(text: str) -> str:
    return " ".join(THOUSANDS.sub("", text).replace(",", " ").lower().split())

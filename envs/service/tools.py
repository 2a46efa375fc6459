"""The tools of a service by name, and the execution of calls."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from temper.envs.core.turn_text import BadCall, Call
from temper.envs.service.records import Database, Record
from temper.envs.tools.calculator import calculate as value_of

Action = dict[str, Any]
TRANSFER = "transfer_to_human_agents"
LARGEST = 10**12
"""Largest absolute value of a number in a call, since the tools calculate with it."""


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST


KINDS: Mapping[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("a string", lambda value: isinstance(value, str)),
    int: ("a whole number", lambda value: type(value) is int and is_number(value)),
    float: ("a number", is_number),
    list[str]: (
        "a list of strings",
        lambda value: isinstance(value, list) and all(isinstance(it, str) for it in value),
    ),
    list[dict[str, Any]]: (
        "a list of objects",
        lambda value: isinstance(value, list) and all(isinstance(it, dict) for it in value),
    ),
}


class Refusal(Exception):
    """A call that a tool refuses, with the answer to the model. Nothing was changed."""


class ToolSet:
    """The tools of one service: functions of its database and required keyword arguments."""

    def __init__(self, *, reading: Iterable[Callable[..., str]], writing: Iterable[Callable[..., str]]) -> None:
        self.writing = {tool.__name__: tool for tool in writing}
        self.tools = self.writing | {tool.__name__: tool for tool in reading}
        self._parameters = {
            name: {
                key: known.annotation for key, known in inspect.signature(tool).parameters.items() if key != "database"
            }
            for name, tool in self.tools.items()
        }

    def run(self, database: Any, call: Call | BadCall) -> str:
        """Return the tool's answer. Raise `Refusal`, with nothing changed, for an unreadable or refused call."""
        if isinstance(call, BadCall):
            raise Refusal(call.error.removeprefix("error: "))
        if call.name not in self.tools:
            raise Refusal("unknown tool")
        _check_arguments(self._parameters[call.name], call.arguments)
        return self.tools[call.name](database, **call.arguments)

    def replay(self, database: Any, actions: Sequence[Mapping[str, Any]]) -> list[int]:
        """Execute actions (`name`, `arguments`) in order and return the indices of the refused ones."""
        refused = []
        for index, action in enumerate(actions):
            try:
                self.run(database, Call(name=action["name"], arguments=action["arguments"]))
            except Refusal:
                refused.append(index)
        return refused


def _check_arguments(parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    for key, kind in parameters.items():
        if key not in arguments:
            raise Refusal(f"missing argument {key}")
        said, fits = KINDS[kind]
        if not fits(arguments[key]):
            raise Refusal(f"{key} must be {said}")
    if len(arguments) > len(parameters):
        raise Refusal(f"unknown argument; there are {', '.join(parameters) or 'none'}")


def calculate(database: Any, *, expression: str) -> str:
    """Return the value rounded to cents, always with a decimal point."""
    try:
        return str(round(float(value_of(expression)), 2))
    except ValueError as error:
        raise Refusal(str(error)) from None


def get_user_details(database: Database[Any], *, user_id: str) -> str:
    return json.dumps(require_record(database, "users", user_id))


def require_record(database: Database[Any], table: str, key: str) -> Record:
    """Return the current record. Raise `Refusal` if there is none of this id."""
    record = database.find(table, key)
    if record is None:
        raise Refusal(f"{table.removesuffix('s')} not found")
    return record


def think(database: Any, *, thought: str) -> str:
    return ""


def transfer_to_human_agents(database: Any, *, summary: str) -> str:
    """End the dialogue. The environment does that."""
    return "Transfer successful"

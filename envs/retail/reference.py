"""Right and wrong turns in the shop, from a task's actions."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from temper.envs.core.task import Task
from temper.envs.core.turn_text import make_call_turn, remove_calls, turn_text
from temper.envs.retail.customer import SCRIPT, USER_REPLIES, has_simulated_customer, is_model
from temper.envs.retail.database import Database
from temper.envs.retail.outputs import contains_output, takes_parts
from temper.envs.retail.rows import database_of
from temper.envs.retail.tools import TRANSFER, WRITING, Action, replay, require_record

GREETING = "Hello, how can I help you?"
CLOSING = "That is all. Good-bye."


def reference(task: Task) -> list[str]:
    """Return the turns of the actions. Raise `ValueError` if a model plays the customer."""
    if is_model(task.env.options.get("customer")):
        raise ValueError(f"the customer is a model, whose replies are not known; check with customer: {SCRIPT}")
    return _turns(task, task.spec["actions"])


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    actions: list[Action] = task.spec["actions"]
    after = _after(task, actions)
    for index, action in enumerate(actions):
        if action["name"] not in WRITING:
            continue
        for name, other in _others(action):
            changed = [*actions[:index], *other, *actions[index + 1 :]]
            if not _after(task, changed).is_same_state(after):
                yield f"{action['name']} ({index}) {name}", _turns(task, changed)
    if has_simulated_customer(task):
        yield "a transfer at once", [_turn(CLOSING, {"name": TRANSFER, "arguments": {"summary": CLOSING}})]
    yield "one change more", _turns(task, [*actions, _further(after, task.spec["user_id"])])
    said_in = partial(contains_output, part=takes_parts(task))
    for output in task.spec["outputs"]:
        unsaid = _turns(task, actions, [other for other in task.spec["outputs"] if not said_in(other, output)])
        if not said_in("\n".join(remove_calls(turn) for turn in unsaid), output):
            yield f"output {output!r} unsaid", unsaid


def _after(task: Task, actions: list[Action]) -> Database:
    database = database_of(task)
    replay(database, actions)
    return database


def _further(database: Database, user_id: str) -> Action:
    """Return an action that changes the current database for this user."""
    address = require_record(database, "users", user_id)["address"]
    changed = address | {"address2": f"{address['address2']} B"}
    return {"name": "modify_user_address", "arguments": {"user_id": user_id, **changed}}


def _others(action: Action) -> Iterator[tuple[str, list[Action]]]:
    yield "left out", []
    for key, value in action["arguments"].items():
        if isinstance(value, list):
            other: Any = value[1:]
        else:
            other = f"{value}9" if isinstance(value, str) else value + 1
        yield f"with {key} {other!r}", [action | {"arguments": action["arguments"] | {key: other}}]


def _turns(task: Task, actions: list[Action], outputs: list[str] | None = None) -> list[str]:
    """Return the turns of these actions. A transfer, which ends the dialogue, comes last."""
    said = "\n".join(["Done.", *(task.spec["outputs"] if outputs is None else outputs)])
    turns = [GREETING] if has_simulated_customer(task) else []
    turns += [_turn("", action) for action in actions if action["name"] != TRANSFER]
    transfers = [action for action in actions if action["name"] == TRANSFER]
    if transfers:
        return [*turns, _turn(said, transfers[0])]
    return [*turns, said, *[CLOSING] * USER_REPLIES]


def _turn(content: str, action: Action) -> str:
    return turn_text(make_call_turn([(action["name"], action["arguments"])], content=content), thinks=False)

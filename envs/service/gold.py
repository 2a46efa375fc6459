"""Right and wrong turns in a service, made from the actions that a task holds."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from temper.envs.core.task import Task
from temper.envs.core.turn_text import CALL_BLOCK, call_message, turn_text
from temper.envs.service.domain import USER_REPLIES, Domain, says, takes_parts
from temper.envs.service.tools import TRANSFER, Action

CLOSING = "That is all. Good-bye."


def gold(task: Task) -> list[str]:
    """Return one call a turn, a text with all outputs, and as many good-byes as the user answers."""
    return _turns(task, task.spec["actions"])


def corruptions(task: Task, *, domain: Domain[Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield each writing action left out or altered, a further one, and each output left unsaid.

    Left alone are actions that are refused, that change nothing, or that are done over by another.
    """
    actions: list[Action] = task.spec["actions"]
    for index in effective_actions(task, domain):
        label = f"{actions[index]['name']} ({index})"
        rest = [*actions[:index], *actions[index + 1 :]]
        yield f"{label} left out", _turns(task, rest)
        before = domain.fresh_for(task)
        domain.tools.replay(before, actions[:index])
        for name, altered in domain.alterations(before, actions[index]):
            yield f"{label} with {name}", _turns(task, [*actions[:index], altered, *actions[index + 1 :]])
    after = domain.fresh_for(task)
    domain.tools.replay(after, actions)
    yield "one change more", _turns(task, [*actions, domain.further(after, task.spec["user_id"])])
    said_in = partial(says, part=takes_parts(task))
    for output in task.spec["outputs"]:
        unsaid = _turns(task, actions, [other for other in task.spec["outputs"] if not said_in(other, output)])
        if not said_in("\n".join(CALL_BLOCK.sub("", turn) for turn in unsaid), output):
            yield f"output {output!r} unsaid", unsaid


def effective_actions(task: Task, domain: Domain[Any]) -> list[int]:
    """Return the indices of the writing actions that leave a trace of their own: without one, the database is another."""
    actions = task.spec["actions"]
    whole = domain.fresh_for(task)
    domain.tools.replay(whole, actions)
    found = []
    for index, action in enumerate(actions):
        rest = whole.before()
        domain.tools.replay(rest, [*actions[:index], *actions[index + 1 :]])
        if action["name"] in domain.tools.writing and not whole.same_state(rest):
            found.append(index)
    return found


def _turns(task: Task, actions: list[Action], outputs: list[str] | None = None) -> list[str]:
    """Write the turns of these actions; a transfer, which ends the dialogue, comes last."""
    said = "\n".join(["Done.", *(task.spec["outputs"] if outputs is None else outputs)])
    turns = [_turn("", action) for action in actions if action["name"] != TRANSFER]
    transfers = [action for action in actions if action["name"] == TRANSFER]
    if transfers:
        return [*turns, _turn(said, transfers[0])]
    return [*turns, said, *[CLOSING] * USER_REPLIES]


def _turn(content: str, action: Action) -> str:
    calls = [call_message(action["name"], action["arguments"])]
    return turn_text({"content": content, "tool_calls": calls}, thinks=False)

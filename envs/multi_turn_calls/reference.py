"""Right and wrong multi-turn dialogues, from a task's reference calls."""

from collections.abc import Iterator
from typing import Any

from temper.envs.core.task import Task
from temper.envs.core.turn_text import make_call_turn, turn_text

DONE = "Done."
Calls = list[dict[str, Any]]


def reference(task: Task) -> list[str]:
    return _turns(task.spec["reference"])


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    turns: list[Calls] = task.spec["reference"]
    for place, calls in enumerate(turns):
        if calls:
            yield f"turn {place} without calls", _turns([*turns[:place], [], *turns[place + 1 :]])
            yield f"turn {place} not ended", _turns(turns[: place + 1])[:-1]
    if any(turns):
        other = [[call | {"name": f"{call['name']}_other"} for call in calls] for calls in turns]
        yield "other functions", _turns(other)


def _turns(turns: list[Calls]) -> list[str]:
    texts = []
    for calls in turns:
        if calls:
            asked = [(call["name"], call["arguments"]) for call in calls]
            texts.append(turn_text(make_call_turn(asked), thinks=False))
        texts.append(DONE)
    return texts

"""Right and wrong turns of tool use, for generated tasks and for rows of function-calling data."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from envs.core.task import Task
from envs.core.turn_text import call_message, turn_text
from envs.tool_use.function_rows import argument_schemas
from envs.tool_use.lookups import demonstrate
from rewards.tool_calls import GoldCall

Calls = list[dict[str, Any]]
"""Calls as `{"name", "arguments"}`."""
NO_CALL = "None of the functions can answer this."
WRONG_TEXT = "certainly not this"


def gold(task: Task) -> list[str]:
    """Return the turns of a right answer: the expert's, or one that makes the accepted calls."""
    if "accepted" in task.spec:
        return [_turn(_gold_calls(task))]
    return [turn_text(message, thinks=False) for message in demonstrate(task) if message["role"] == "assistant"]


def corruptions(task: Task) -> Iterator[tuple[str, list[str]]]:
    """Yield the turns of wrong answers, by what was done to the right one."""
    return _wrong_calls(task) if "accepted" in task.spec else _wrong_answers(task)


def _wrong_answers(task: Task) -> Iterator[tuple[str, list[str]]]:
    *asked, answered = gold(task)
    value = int(task.spec["answer"])
    yield "neighbour", [*asked, f"\\boxed{{{value + 1}}}"]
    yield "contradicting boxes", [*asked, f"\\boxed{{{value}}} \\boxed{{{value + 1}}}"]
    yield "no answer", asked
    yield "empty answer", [*asked, ""]
    yield "a call that never ends", [*asked, f"<tool_call>{answered}"]


def _wrong_calls(task: Task) -> Iterator[tuple[str, list[str]]]:
    """Yield for each accepted call a wrong function, a missing, unknown, wrong or mistyped argument, no call; an extra one."""
    calls = _gold_calls(task)
    yield "extra call", [_turn([*calls, calls[0] if calls else {"name": "surplus", "arguments": {}}])]
    for index, call in enumerate(calls):
        label = f"{call['name']} ({index})"
        yield f"{label} left out", [_turn([*calls[:index], *calls[index + 1 :]])]
        for name, changed in _spoilt(call, _accepted_of(task, call["name"]), task):
            yield f"{label}: {name}", [_turn([*calls[:index], changed, *calls[index + 1 :]])]


def _accepted_of(task: Task, name: str) -> dict[str, list[Any]]:
    """Return the values of each argument that any accepted call of this function takes."""
    taken: dict[str, list[Any]] = {}
    for call in task.spec["accepted"]:
        for argument, values in call.get(name, {}).items():
            taken.setdefault(argument, []).extend(values)
    return taken


def _spoilt(call: dict[str, Any], accepted: dict[str, list[Any]], task: Task) -> Iterator[tuple[str, dict[str, Any]]]:
    arguments = call["arguments"]
    known = argument_schemas(task.tools).get(call["name"], {})
    yield "wrong function", call | {"name": f"{call['name']}_other"}
    yield "unknown argument", call | {"arguments": arguments | {"surplus_argument": 1}}
    for key, value in arguments.items():
        if "" not in accepted[key]:
            yield f"no {key}", call | {"arguments": {name: it for name, it in arguments.items() if name != key}}
        wrong = {"wrong": _other_value(value), "mistyped": _other_type(value)}
        if type(value) is int and known.get(key, {}).get("type") == "integer":
            wrong["fraction"] = float(value)
        for name, changed in wrong.items():
            if not any(type(changed) is type(option) and changed == option for option in accepted[key]):
                yield f"{name} {key}", call | {"arguments": arguments | {key: changed}}


def _other_value(value: Any) -> Any:
    """Return another value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 7919
        case list():
            return [*value, *(value[-1:] or [WRONG_TEXT])]
        case dict():
            return value | {"surplus_key": 1}
    return f"{value} {WRONG_TEXT}"


def _other_type(value: Any) -> Any:
    """Return the same value in another type: 5 as "5", true as 1, a text in a list."""
    match value:
        case bool():
            return int(value)
        case str():
            return [value]
    return json.dumps(value)


def _gold_calls(task: Task) -> Calls:
    required = {tool["function"]["name"]: tool["function"]["parameters"].get("required") or [] for tool in task.tools}
    return [_gold_call(call, required) for call in task.spec["accepted"]]


def _gold_call(call: GoldCall, required: dict[str, list[str]]) -> dict[str, Any]:
    ((name, accepted),) = call.items()
    needed = {key: values for key, values in accepted.items() if "" not in values or key in required.get(name, [])}
    return {"name": name, "arguments": {key: _first(values, key) for key, values in needed.items()}}


def _first(values: Any, key: str) -> Any:
    """Return the first accepted value, of an object that of each key; `""` only where there is no other."""
    if values == []:
        raise ValueError(f"argument {key!r} has no accepted value; its list must hold at least one")
    return _plain(next((value for value in values if value != ""), ""), key)


def _plain(value: Any, key: str) -> Any:
    if isinstance(value, list):
        return [_plain(item, key) for item in value]
    if not isinstance(value, dict):
        return copy.copy(value)
    return {
        name: _first(choices, name) if isinstance(choices, list) else _plain(choices, name)
        for name, choices in value.items()
        if not (isinstance(choices, list) and "" in choices)
    }


def _turn(calls: Calls) -> str:
    made = [call_message(call["name"], call["arguments"]) for call in calls]
    return turn_text({"content": "" if calls else NO_CALL, "tool_calls": made}, thinks=False)

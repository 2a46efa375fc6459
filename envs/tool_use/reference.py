"""Right and wrong turns of tool use, for generated tasks and for rows of function-calling data."""

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from temper.envs.core.task import Task
from temper.envs.core.turn_text import make_call_turn, turn_text
from temper.envs.tool_use.leaderboard_rows import argument_types, schemas_of
from temper.envs.tool_use.lookups import demonstrate
from temper.rewards.foreign_values import Language, foreign_value
from temper.rewards.tool_calls import (
    OMITTED,
    ReferenceCall,
    Schema,
    Schemas,
    inner_schema,
    is_argument_accepted,
    type_of,
)

Calls = list[dict[str, Any]]
NO_CALL = "None of the functions can answer this."
WRONG_TEXT = "certainly not this"
SUFFIXES = {("java", "long"): "L", ("java", "float"): "f", ("javascript", "Bigint"): "n"}
QUOTED = ("char", "String")


def reference(task: Task) -> list[str]:
    if "answer" not in task.spec:
        return [_turn([_written(call, task) for call in _reference_calls(task)])]
    return [turn_text(message, thinks=False) for message in demonstrate(task) if message["role"] == "assistant"]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    if "accepted" in task.spec:
        yield from _wrong_calls(task)
    elif "wanted" in task.spec:
        called = bool(_reference_calls(task))
        yield "no call" if called else "a call", [_turn([] if called else [_any_call(task)])]
    else:
        yield from _wrong_answers(task)


def _wrong_answers(task: Task) -> Iterator[tuple[str, list[str]]]:
    *opening, answered = reference(task)
    value = int(task.spec["answer"])
    yield "neighbour", [*opening, f"\\boxed{{{value + 1}}}"]
    yield "contradicting boxes", [*opening, f"\\boxed{{{value}}} \\boxed{{{value + 1}}}"]
    yield "no answer", opening
    yield "empty answer", [*opening, ""]
    yield "a call that never ends", [*opening, f"<tool_call>{answered}"]


def _wrong_calls(task: Task) -> Iterator[tuple[str, list[str]]]:
    """Yield for each accepted call a wrong function, a missing, unknown, wrong or mistyped argument, no call, and an extra
    one.
    """
    calls = [_written(call, task) for call in _reference_calls(task)]
    yield "extra call", [_turn([*calls, calls[0] if calls else {"name": "surplus", "arguments": {}}])]
    for index, call in enumerate(calls):
        label = f"{call['name']} ({index})"
        yield f"{label} left out", [_turn([*calls[:index], *calls[index + 1 :]])]
        for name, changed in _spoilt(call, _accepted_of(task, call["name"]), task):
            yield f"{label}: {name}", [_turn([*calls[:index], changed, *calls[index + 1 :]])]


def _accepted_of(task: Task, name: str) -> dict[str, list[Any]]:
    taken: dict[str, list[Any]] = {}
    for call in task.spec["accepted"]:
        for argument, values in call.get(name, {}).items():
            taken.setdefault(argument, []).extend(values)
    return taken


def _spoilt(call: dict[str, Any], accepted: dict[str, list[Any]], task: Task) -> Iterator[tuple[str, dict[str, Any]]]:
    arguments = call["arguments"]
    known = schemas_of(task).get(call["name"], {})
    yield "wrong function", call | {"name": f"{call['name']}_other"}
    yield "unknown argument", call | {"arguments": arguments | {"surplus_argument": 1}}
    for key, value in arguments.items():
        if "" not in accepted[key]:
            yield f"no {key}", call | {"arguments": {name: it for name, it in arguments.items() if name != key}}
        other = _other_value(value) if task.spec.get("language") is None else WRONG_TEXT
        wrong = {"wrong": other, "mistyped": _other_type(value)}
        if type(value) is int and type_of(inner_schema(known, "properties", key)) is int:
            wrong["fraction"] = float(value)
        for name, changed in wrong.items():
            if not any(type(changed) is type(option) and changed == option for option in accepted[key]):
                yield f"{name} {key}", call | {"arguments": arguments | {key: changed}}


def _other_value(value: Any) -> Any:
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


def _reference_calls(task: Task) -> Calls:
    if "wanted" in task.spec:
        return [_any_call(task)] if task.spec["wanted"] == "any call" else []
    schemas = schemas_of(task)
    return [_reference_call(call, schemas) for call in task.spec["accepted"]]


def _any_call(task: Task) -> dict[str, Any]:
    return {"name": task.tools[0]["function"]["name"] if task.tools else "surplus", "arguments": {}}


def _written(call: dict[str, Any], task: Task) -> dict[str, Any]:
    """Return a call with its arguments as literals of the row's language, unchanged for Python."""
    language = task.spec.get("language")
    if language is None:
        return call
    types = argument_types(task, call["name"])
    return call | {
        "arguments": {key: literal(value, *types[key], language) for key, value in call["arguments"].items()}
    }


def _reference_call(call: ReferenceCall, schemas: Schemas) -> dict[str, Any]:
    ((name, accepted),) = call.items()
    schema = schemas.get(name, {})
    required = schema.get("required") or []
    needed = {key: values for key, values in accepted.items() if OMITTED not in values or key in required}
    made = {key: _given(key, values, inner_schema(schema, "properties", key)) for key, values in needed.items()}
    return {"name": name, "arguments": made}


def _given(key: str, accepted: Sequence[Any], schema: Schema) -> Any:
    """Return the first accepted value, for an object the first of each key. Omitted or an empty list only if there is no
    other.
    """
    stated = [_value(option, schema) for option in accepted if option != OMITTED]
    for value in (*stated, OMITTED, []):
        if is_argument_accepted(value, accepted, schema):
            return value
    raise ValueError(f"argument {key!r} has no accepted value in {accepted!r:.80} for the schema {schema!r:.80}")


def _value(option: Any, schema: Schema) -> Any:
    if isinstance(option, dict) and type_of(schema) is dict:
        lists = {key: values if isinstance(values, list) else [values] for key, values in option.items()}
        return {
            key: copy.deepcopy(values[0] if values else None) for key, values in lists.items() if OMITTED not in values
        }
    if isinstance(option, list) and type_of(schema) is list:
        return [_value(item, inner_schema(schema, "items")) for item in option]
    return copy.deepcopy(option)


def _turn(calls: Calls) -> str:
    made = [(call["name"], call["arguments"]) for call in calls]
    return turn_text(make_call_turn(made, content="" if calls else NO_CALL), thinks=False)


def literal(value: Any, kind: str, items: str | None, language: Language) -> str:
    """Return the literal that is read as `value`. Raise `ValueError` if there is none."""
    text = _java(value, kind, items) if language == "java" else _javascript(value, items)
    text += SUFFIXES.get((language, kind), "")
    if foreign_value(text, kind, items, language) != value:
        raise ValueError(f"no {language} literal of type {kind} is read as {value!r:.80}")
    return text


def _java(value: Any, kind: str, items: str | None) -> str:
    if isinstance(value, dict):
        puts = " ".join(f"put({json.dumps(key)}, {_guessable(inner)});" for key, inner in value.items())
        return f"new HashMap<>() {{{{ {puts} }}}}" if value else "new HashMap<>()"
    if isinstance(value, list):
        quoted = kind == "ArrayList" and items in QUOTED
        parts = ", ".join(json.dumps(one) if quoted else literal(one, items or "any", None, "java") for one in value)
        if kind == "Array":
            return f"new Object[]{{{parts}}}"
        return f"new ArrayList<>(Arrays.asList({parts}))" if value else "new ArrayList<>()"
    return value if isinstance(value, str) else json.dumps(value)


def _javascript(value: Any, items: str | None) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_guessable(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        typed = items in ("String", None)
        return "[" + ", ".join(_guessable(one) if typed else _javascript(one, None) for one in value) + "]"
    return value if isinstance(value, str) else json.dumps(value)


def _guessable(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_guessable(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)

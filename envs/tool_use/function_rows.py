"""Rows of function-calling data (BFCL): schemas, a question, and the accepted calls."""

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from envs.core.jsonl import field
from envs.core.task import Task, Tool
from envs.core.turn_text import BadCall, Call, call_message, turn_text
from envs.tool_use.lookups import ENV
from rewards.tool_calls import GoldCall, Schema, Schemas, match_calls
from rewards.verdict import Verdict, verdict

JSON_TYPES = {
    "string": ("string", "char", "str"),
    "integer": ("integer", "int", "long", "short", "byte", "bigint", "biginteger"),
    "number": ("number", "float", "double", "bigdecimal"),
    "boolean": ("boolean", "bool"),
    "array": ("array", "list", "tuple", "arraylist", "set", "queue", "stack"),
    "object": ("object", "dict", "hashmap", "hashtable", "map"),
    "null": ("null",),
}
TYPE_NAMES = {name: kind for kind, names in JSON_TYPES.items() for name in names}
"""JSON Schema's name of a type by the data's name of it in lower case (Python, Java, JavaScript); of `any` there is none."""
ROLES = ("system", "user", "assistant")
Calls = list[dict[str, Any]]
"""Calls as `{"name", "arguments"}`."""
NO_CALL = "None of the functions can answer this."
WRONG_TEXT = "certainly not this"


def load(row: dict[str, Any], key: str) -> Task:
    """A row: `question` (one turn of messages), `function` (schemas) and `ground_truth` (accepted calls)."""
    question = field(row, "question", list)
    if len(question) != 1 or not isinstance(question[0], list):
        raise ValueError(f"field 'question' must hold one list of messages, it holds {len(question)} entries")
    gold = field(row, "ground_truth", list)
    tools = tuple(_tool(schema) for schema in field(row, "function", list))
    for call in gold:
        if not isinstance(call, dict) or len(call) != 1 or not all(_accepted(values) for values in call.values()):
            raise ValueError("field 'ground_truth' must hold {name: {argument: [accepted values]}}")
    messages = tuple(_message(message) for message in question[0])
    if not any(message["role"] == "user" for message in messages):
        raise ValueError("field 'question' has no user message")
    return Task(env=ENV, key=key, messages=messages, spec={"accepted": gold}, tools=tools)


def _accepted(arguments: Any) -> bool:
    return isinstance(arguments, dict) and all(isinstance(values, list) for values in arguments.values())


def _message(message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or message.get("role") not in ROLES or not isinstance(message.get("content"), str):
        raise ValueError(f"a message must have a role of {ROLES} and text content, not {message!r:.80}")
    return {"role": message["role"], "content": message["content"]}


def _tool(schema: Any) -> Tool:
    match schema:
        case {"name": str(), "parameters": dict(parameters)} if _properties(parameters) is not None:
            return {"type": "function", "function": schema | {"parameters": _json_schema(parameters)}}
    raise ValueError(f"field 'function' must hold schemas with a name and parameters, not {schema!r:.80}")


def _properties(parameters: dict[str, Any]) -> Schema | None:
    """The schemas of the arguments; None where they are no schemas."""
    properties = parameters.get("properties", {})
    well_formed = isinstance(properties, dict) and all(isinstance(known, dict) for known in properties.values())
    return properties if well_formed else None


def _json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the data's names of types made JSON Schema's; a type that JSON does not have is left out."""
    made = dict(schema)
    if isinstance(schema.get("type"), str):
        kind = TYPE_NAMES.get(made.pop("type").lower())
        made = {"type": kind} | made if kind is not None else made
    if isinstance(schema.get("properties"), dict):
        made["properties"] = {
            name: _json_schema(inner) if isinstance(inner, dict) else inner
            for name, inner in schema["properties"].items()
        }
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            made[name] = _json_schema(schema[name])
    return made


def argument_schemas(tools: Sequence[Tool]) -> Schemas:
    """The JSON schema of every argument of every tool."""
    return {tool["function"]["name"]: _properties(tool["function"]["parameters"]) or {} for tool in tools}


def judge(task: Task, calls: Sequence[Call | BadCall]) -> Verdict:
    """Right when every call is readable and the calls match the accepted ones, in any order; other text is free."""
    good = [(call.name, call.arguments) for call in calls if isinstance(call, Call)]
    well_formed = len(good) == len(calls)
    matched = well_formed and match_calls(good, task.spec["accepted"], argument_schemas(task.tools))
    return verdict(matched, well_formed=well_formed, detail=f"{len(good)} of {len(calls)} calls readable")


def gold(task: Task) -> list[str]:
    """The turn that makes the accepted calls, with the first accepted value of every argument that is needed."""
    return [_turn(_gold_calls(task))]


def corruptions(task: Task) -> Iterator[tuple[str, list[str]]]:
    """For each accepted call a wrong function, a missing, unknown, wrong or mistyped argument, no call; an extra one."""
    calls = _gold_calls(task)
    yield "extra call", [_turn([*calls, calls[0] if calls else {"name": "surplus", "arguments": {}}])]
    for index, call in enumerate(calls):
        label = f"{call['name']} ({index})"
        yield f"{label} left out", [_turn([*calls[:index], *calls[index + 1 :]])]
        for name, changed in _spoilt(call, _accepted_of(task, call["name"]), task):
            yield f"{label}: {name}", [_turn([*calls[:index], changed, *calls[index + 1 :]])]


def _accepted_of(task: Task, name: str) -> dict[str, list[Any]]:
    """The values of each argument that any accepted call of this function takes."""
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
    """Another value of the same type."""
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
    """The same value in another type: 5 as "5", true as 1, a text in a list."""
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
    """The first accepted value, of an object that of each key; `""` only where there is no other."""
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

"""Rows of function-calling data (BFCL): schemas, a question, and the accepted calls."""

from collections.abc import Sequence
from typing import Any

from envs.core.row_format import field
from envs.core.task import Task, Tool
from envs.core.turn_text import BadCall, Call
from rewards.tool_calls import Schema, Schemas, match_calls
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


def load(row: dict[str, Any]) -> Task:
    """Make a task of a row: `question` (one turn of messages), `function` (schemas), `ground_truth` (accepted calls)."""
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
    return Task(messages=messages, spec={"accepted": gold}, tools=tools)


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
    """Return the schemas of the arguments; None where they are no schemas."""
    properties = parameters.get("properties", {})
    well_formed = isinstance(properties, dict) and all(isinstance(known, dict) for known in properties.values())
    return properties if well_formed else None


def _json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the data's names of types made JSON Schema's; a type that JSON does not have is left out."""
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
    """Return the JSON schema of every argument of every tool."""
    return {tool["function"]["name"]: _properties(tool["function"]["parameters"]) or {} for tool in tools}


def judge(task: Task, calls: Sequence[Call | BadCall]) -> Verdict:
    """Judge as right when every call is readable and the calls match the accepted ones, in any order; other text is free."""
    good = [(call.name, call.arguments) for call in calls if isinstance(call, Call)]
    well_formed = len(good) == len(calls)
    matched = well_formed and match_calls(good, task.spec["accepted"], argument_schemas(task.tools))
    return verdict(matched, well_formed=well_formed, detail=f"{len(good)} of {len(calls)} calls readable")

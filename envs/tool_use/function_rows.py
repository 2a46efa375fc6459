"""Rows of function-calling data (BFCL): schemas, a question, and the accepted calls, whose texts must match exactly."""

from collections.abc import Sequence
from typing import Any

from temper.envs.core.messages import read_prompt
from temper.envs.core.row_format import Row, field
from temper.envs.core.task import Message, Task, Tool
from temper.rewards.tool_calls import Schemas

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
"""The JSON Schema type of a type name of the data in lower case (Python, Java, JavaScript). `any` has none."""


def load(row: Row) -> Task:
    """Make a task of a row: `question` (one turn of messages), `function` (schemas), `ground_truth` (accepted calls)."""
    accepted = read_accepted_calls(field(row, "ground_truth", list))
    tools = tuple(tool_of(schema) for schema in field(row, "function", list))
    return Task(messages=messages_of(row), spec={"accepted": accepted, "exact": True}, tools=tools)


def messages_of(row: Row) -> tuple[Message, ...]:
    question = field(row, "question", list)
    if len(question) != 1 or not isinstance(question[0], list):
        raise ValueError(f"field 'question' has {len(question)} entries; it must hold one list of messages")
    return tuple(read_prompt(question[0], name="question"))


def read_accepted_calls(calls: list[Any]) -> list[dict[str, Any]]:
    for call in calls:
        arguments = next(iter(call.values())) if isinstance(call, dict) and len(call) == 1 else None
        if not isinstance(arguments, dict) or not all(isinstance(values, list) for values in arguments.values()):
            raise ValueError("field 'ground_truth' must hold {name: {argument: [accepted values]}}")
    return calls


def tool_of(schema: Any) -> Tool:
    match schema:
        case {"name": str(), "parameters": dict(parameters)} if _has_valid_properties(parameters):
            return {"type": "function", "function": schema | {"parameters": json_schema(parameters)}}
    raise ValueError(f"field 'function' must hold schemas with a name and parameters, not {schema!r:.80}")


def _has_valid_properties(parameters: dict[str, Any]) -> bool:
    properties = parameters.get("properties", {})
    return isinstance(properties, dict) and all(isinstance(known, dict) for known in properties.values())


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with JSON Schema types. A type that JSON lacks is omitted."""
    made = dict(schema)
    if isinstance(schema.get("type"), str):
        kind = TYPE_NAMES.get(made.pop("type").lower())
        made = {"type": kind} | made if kind is not None else made
    if isinstance(schema.get("properties"), dict):
        made["properties"] = {
            name: json_schema(inner) if isinstance(inner, dict) else inner
            for name, inner in schema["properties"].items()
        }
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            made[name] = json_schema(schema[name])
    return made


def parameter_schemas(tools: Sequence[Tool]) -> Schemas:
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}

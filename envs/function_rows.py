"""Rows of function-calling data (BFCL): schemas, a question, and the accepted calls."""

from collections.abc import Sequence
from typing import Any

from envs.dialogue import BadCall, Call
from envs.lookups import ENV
from envs.rows import field
from envs.task import Task, Tool
from rewards.calls import match_calls
from rewards.verdict import Verdict, verdict

JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
ROLES = ("system", "user", "assistant")


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
    if (
        not isinstance(schema, dict)
        or not isinstance(schema.get("name"), str)
        or not isinstance(schema.get("parameters"), dict)
    ):
        raise ValueError("field 'function' must hold schemas with name and parameters")
    return {"type": "function", "function": schema | {"parameters": _json_schema(schema["parameters"])}}


def _json_schema(schema: Any) -> Any:
    """The schema with the data set's type names (dict, float, tuple, any) made JSON Schema's."""
    if isinstance(schema, list):
        return [_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {name: _json_schema(value) for name, value in schema.items()}
    kind = renamed.get("type")
    if isinstance(kind, str) and kind in JSON_TYPES:
        renamed["type"] = JSON_TYPES[kind]
    return {name: value for name, value in renamed.items() if value is not None or name != "type"}


def argument_types(tools: Sequence[Tool]) -> dict[str, dict[str, str | None]]:
    """The schema type of every argument of every tool."""
    types = {}
    for tool in tools:
        properties = tool["function"]["parameters"].get("properties", {})
        types[tool["function"]["name"]] = {name: schema.get("type") for name, schema in properties.items()}
    return types


def judge(task: Task, calls: Sequence[Call | BadCall]) -> Verdict:
    """Right when every call is readable and the calls match the accepted ones, in any order; other text is free."""
    good = [(call.name, call.arguments) for call in calls if isinstance(call, Call)]
    well_formed = len(good) == len(calls)
    matched = well_formed and match_calls(good, task.spec["accepted"], argument_types(task.tools))
    return verdict(matched, well_formed=well_formed, detail=f"{len(good)} of {len(calls)} calls readable")

"""Rows of the Berkeley Function-Calling Leaderboard in its layout: questions in one file, accepted calls in another.

The answers to `BFCL_v4_X.json` are in `possible_answer/BFCL_v4_X.json` and have the ids of their questions, which name the
category X. There are none if the right answer is no call (irrelevance) or any call (relevance). Prompts follow the
leaderboard's form for models with native function calls (Patil et al., "The Berkeley Function Calling Leaderboard", ICML
2025): the dialogue without added text, and the functions, whose descriptions name the language. Arguments of Java and
JavaScript are literals in texts, which `temper.rewards.foreign_values` reads.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from temper.envs.core.row_format import Row, field
from temper.envs.core.task import Task, Tool
from temper.envs.core.turn_text import BadCall, Call
from temper.envs.data.jsonl import read_sound_rows
from temper.envs.tool_use.function_rows import json_schema, messages_of, parameter_schemas, read_accepted_calls, tool_of
from temper.rewards.foreign_values import JSON_TYPES, Language, foreign_value
from temper.rewards.score import Score, binary_score
from temper.rewards.tool_calls import Schema, Schemas, inner_schema, match_calls

Wanted = Literal["no call", "any call"]
WANTED: Mapping[str, Wanted] = {"irrelevance": "no call", "live_irrelevance": "no call", "live_relevance": "any call"}
LANGUAGES: Mapping[str, Language] = {"simple_java": "java", "simple_javascript": "javascript"}
NO_VALUE = object()
SPOKEN: Mapping[Language | None, str] = {None: "Python 3", "java": "Java 8 SDK", "javascript": "JavaScript"}
ANSWERED = (
    *(f"{live}{shape}" for live in ("", "live_") for shape in ("multiple", "parallel", "parallel_multiple")),
    *("simple_python", "live_simple", *LANGUAGES),
)
CATEGORIES = (*ANSWERED, *WANTED)
ANSWERS = tuple(f"possible_answer/BFCL_v4_{category}.json" for category in ANSWERED)


def category_of(row: Row) -> str:
    return str(row.get("id", "")).rpartition("_")[0]


def is_question(row: Row) -> bool:
    return "function" in row and "ground_truth" not in row and category_of(row) in CATEGORIES


def load(row: Row, *, folder: Path | None) -> Task:
    """Make a task of a question, with its answer below `folder`. Raise `ValueError` if there is none."""
    category = category_of(row)
    language = LANGUAGES.get(category)
    functions = [_plainly_named(function) for function in field(row, "function", list)]
    tools = tuple(describe_function(function, language) for function in functions)
    if category in WANTED:
        spec: dict[str, Any] = {"wanted": WANTED[category]}
    else:
        spec = {"accepted": _accepted(str(row["id"]), category, folder)}
    if language is not None:
        spec |= {"language": language, "functions": {one["name"]: one["parameters"] for one in functions}}
    return Task(messages=messages_of(row), spec=spec, tools=tools)


def _plainly_named(function: Any) -> Any:
    """Return a function with underscores for the dots of its name, since few templates and servers accept dots."""
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return function
    return function | {"name": _plain(function["name"])}


def _plain(name: str) -> str:
    return name.replace(".", "_")


def _accepted(row_id: str, category: str, folder: Path | None) -> list[dict[str, Any]]:
    calls = read_accepted_calls(answer_to(row_id, category, folder))
    return [{_plain(name): arguments for name, arguments in call.items()} for call in calls]


def answer_to(row_id: str, category: str, folder: Path | None) -> list[Any]:
    """Return the field `ground_truth` of the answer to a question of a category, below `folder`."""
    path = Path() if folder is None else folder / "possible_answer" / f"BFCL_v4_{category}.json"
    if folder is None or not path.is_file():
        raise ValueError(f"{path} with the accepted calls is missing; download the leaderboard's folder again")
    answers = _answers(path, path.stat().st_mtime_ns)
    if row_id not in answers:
        raise ValueError(f"{path} has no answer for {row_id!r}; download both files in the same version")
    return answers[row_id]


@functools.lru_cache(maxsize=32)
def _answers(path: Path, _changed: int) -> Mapping[str, list[Any]]:
    return {field(row, "id", str): field(row, "ground_truth", list) for row in read_sound_rows(path)}


def describe_function(function: Any, language: Language | None) -> Tool:
    """Return a function as the model sees it: with its language, and with texts as arguments in languages other than
    Python.
    """
    tool = tool_of(function)
    properties = inner_schema(function["parameters"], "properties")
    shown = {
        key: _schema(schema) if language is None else _as_text(schema, language) for key, schema in properties.items()
    }
    described = f"{function.get('description', '')} Note that the provided function is in {SPOKEN[language]} syntax."
    parameters = tool["function"]["parameters"] | {"type": "object", "properties": shown}
    return {"type": "function", "function": tool["function"] | {"description": described, "parameters": parameters}}


def _schema(schema: dict[str, Any], *, element: bool = False) -> dict[str, Any]:
    """Return the JSON schema of an argument, text if the data has no type. The description of a float names its type."""
    made = {"type": "string"} | json_schema(schema)
    if isinstance(schema.get("items"), dict):
        made["items"] = _schema(schema["items"], element=True)
    if isinstance(schema.get("properties"), dict):
        made["properties"] = {
            key: _schema(inner) if isinstance(inner, dict) else inner for key, inner in schema["properties"].items()
        }
    if schema.get("type") == "float" and not element:
        made |= {"format": "float", "description": f"{schema.get('description', '')} This is a float type value."}
    return made


def _as_text(schema: dict[str, Any], language: Language) -> dict[str, Any]:
    """Return the schema of a text argument with a literal of the language. Its description names the type."""
    kind, spoken = str(schema.get("type", "any")), SPOKEN[language].split()[0]
    what = f"can be of any type of {spoken} object" if kind == "any" else f"is {spoken} {kind} type parameter"
    subject = "This parameter" if kind == "any" else "This"
    lines = [schema.get("description", ""), f"{subject} {what} in string representation."]
    dropped = {"type"}
    if JSON_TYPES[language].get(kind) == "array":
        lines.append(f"The list elements are of type {_items(schema)}; they are not in string representation.")
        dropped.add("items")
    if kind == "dict" and "properties" in schema:
        entries = json.dumps(schema["properties"])
        lines += [f"The dictionary entries have the following schema; they are not in string representation. {entries}"]
        dropped.add("properties")
    kept = {key: value for key, value in schema.items() if key not in dropped}
    return kept | {"type": "string", "description": " ".join(lines)}


def _items(schema: Schema) -> str | None:
    kind = inner_schema(schema, "items").get("type")
    return kind if isinstance(kind, str) else None


def schemas_of(task: Task) -> Schemas:
    """Return the JSON schemas of the parsed arguments of every function."""
    language = task.spec.get("language")
    if language is None:
        return parameter_schemas(task.tools)
    return {name: _read_schema(parameters, language) for name, parameters in task.spec["functions"].items()}


def _read_schema(parameters: Schema, language: Language) -> Schema:
    types = JSON_TYPES[language]
    properties = {}
    for key, schema in inner_schema(parameters, "properties").items():
        items = _items(schema)
        properties[key] = {"type": types.get(str(schema.get("type")), "string")} | (
            {} if items is None else {"items": {"type": types.get(items, "string")}}
        )
    return {"properties": properties, "required": parameters.get("required", [])}


def judge(task: Task, calls: Sequence[Call | BadCall]) -> Score:
    """Score a turn as right if all its calls are readable and match the accepted ones, in any order. Other text is
    ignored.
    """
    good = [call for call in calls if isinstance(call, Call)]
    well_formed = len(good) == len(calls)
    detail = f"{len(good)} of {len(calls)} calls readable"
    if "wanted" in task.spec:
        return binary_score((task.spec["wanted"] == "any call") == bool(good), well_formed=well_formed, detail=detail)
    read = [(call.name, _arguments(task, call)) for call in good]
    exact = bool(task.spec.get("exact"))
    matched = well_formed and match_calls(read, task.spec["accepted"], schemas_of(task), exact=exact)
    return binary_score(matched, well_formed=well_formed, detail=detail)


def _arguments(task: Task, call: Call) -> Mapping[str, Any]:
    """Return the arguments of a call for comparison. An argument that should be a text but is not has no value."""
    language = task.spec.get("language")
    if language is None:
        return call.arguments
    types = argument_types(task, call.name)
    return {
        key: foreign_value(value, *types[key], language) if isinstance(value, str) and key in types else NO_VALUE
        for key, value in call.arguments.items()
    }


def argument_types(task: Task, name: str) -> Mapping[str, tuple[str, str | None]]:
    known = inner_schema(task.spec["functions"].get(name), "properties")
    return {key: (str(schema.get("type", "any")), _items(schema)) for key, schema in known.items()}

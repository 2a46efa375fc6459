"""The tools of a workspace: `exec`, `read` and `write`."""

from collections.abc import Mapping
from typing import Any

from temper.envs.core.task import Tool
from temper.envs.core.turn_text import BadCall, Call
from temper.envs.workspace.files import Workspace
from temper.rewards.json_schemas import first_error

EXEC_S = 10.0
MAX_RESULT_CHARACTERS = 4000
WRITTEN = "ok"
TEXT, LINE = {"type": "string"}, {"type": "integer", "minimum": 1}


def _tool(name: str, description: str, properties: Mapping[str, Any], *required: str) -> Tool:
    parameters = {"type": "object", "properties": dict(properties), "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = (
    _tool(
        "exec",
        "Runs python FILE, -c CODE or -m unittest. No shell, no changes.",
        {"command": TEXT},
        "command",
    ),
    _tool("read", "A file, or its lines.", {"path": TEXT, "first": LINE, "last": LINE}, "path"),
    _tool(
        "write",
        "Replaces old by new, or the file by text.",
        {"path": TEXT, "old": TEXT, "new": TEXT, "text": TEXT},
        "path",
    ),
)
PARAMETERS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


def use_tool(workspace: Workspace, call: Call | BadCall) -> str:
    """Return the result of a call, shortened. A mistake of the model gets a line that starts with `error:`."""
    if isinstance(call, BadCall):
        return call.error
    if call.name not in PARAMETERS:
        return f"error: unknown tool; there are {', '.join(PARAMETERS)}"
    arguments = call.arguments
    try:
        if (fault := first_error(arguments, PARAMETERS[call.name] | {"additionalProperties": False})) is not None:
            raise ValueError(fault)
        match call.name:
            case "exec":
                return exec_text(*workspace.exec(arguments["command"], timeout_s=EXEC_S))
            case "read":
                return shorten(_lines(workspace.read(arguments["path"]), **_without_path(arguments)))
        _write(workspace, arguments["path"], _without_path(arguments))
    except ValueError as error:
        return f"error: {error}"
    return WRITTEN


def exec_text(code: int, output: str) -> str:
    return f"exit {code}\n{shorten(output)}"


def shorten(text: str) -> str:
    """Cut the middle of a long text."""
    if len(text) <= MAX_RESULT_CHARACTERS:
        return text
    half = MAX_RESULT_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"


def _without_path(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != "path"}


def _lines(text: str, first: int = 1, last: int | None = None) -> str:
    return "".join(text.splitlines(keepends=True)[first - 1 : last])


def _write(workspace: Workspace, path: str, given: dict[str, str]) -> None:
    match given:
        case {"text": text, **rest} if not rest:
            workspace.write(path, text)
        case {"old": old, "new": new, **rest} if not rest:
            text = workspace.read(path)
            found = text.count(old) if old else 0
            if found != 1:
                raise ValueError(f"old is {found} times in {path}; give a passage that is in it once")
            workspace.write(path, text.replace(old, new))
        case _:
            raise ValueError("write takes a path with old and new, or with text")

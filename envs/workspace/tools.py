"""The tools of a workspace: `exec`, `read` and `write`."""

from collections.abc import Mapping
from typing import Any

from temper.envs.core.task import Tool
from temper.envs.core.turn_text import BadCall, Call
from temper.envs.workspace.files import Workspace

MAX_RESULT_CHARACTERS = 4000
WRITTEN = "ok"
TEXT, LINE = {"type": "string"}, {"type": "integer", "minimum": 1}


def _tool(name: str, description: str, properties: Mapping[str, Any], *required: str) -> Tool:
    parameters = {"type": "object", "properties": dict(properties), "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = (
    _tool("exec", "Runs python FILE or python -c CODE. No shell, no changes.", {"command": TEXT}, "command"),
    _tool("read", "A file, or its lines.", {"path": TEXT, "first": LINE, "last": LINE}, "path"),
    _tool(
        "write",
        "Replaces old with new, or the whole file with text.",
        {"path": TEXT, "old": TEXT, "new": TEXT, "text": TEXT},
        "path",
    ),
)
SHELL_TOOLS = (
    _tool("exec", "Runs a shell command. Only its files stay. No network.", {"command": TEXT}, "command"),
    *TOOLS[1:],
)
PARAMETERS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


def use_tool(workspace: Workspace, call: Call | BadCall) -> str:
    """Return the result of a call, shortened. Raise `ValueError` for a mistake of the model."""
    from temper.rewards.json_schemas import first_error  # imports slowly

    if isinstance(call, BadCall):
        raise ValueError(call.error.removeprefix("error: "))
    if call.name not in PARAMETERS:
        raise ValueError(f"unknown tool; there are {', '.join(PARAMETERS)}")
    if (fault := first_error(call.arguments, PARAMETERS[call.name] | {"additionalProperties": False})) is not None:
        raise ValueError(fault)
    match call.name, call.arguments:
        case "exec", {"command": command}:
            return shorten(workspace.exec(command))
        case "read", {"path": path, **lines}:
            return shorten(_lines(workspace.read(path), **lines))
        case "write", {"path": path, "text": text, **rest} if not rest:
            workspace.write(path, text)
        case "write", {"path": path, "old": old, "new": new, **rest} if not rest:
            workspace.write(path, _replaced(workspace.read(path), old, new, path))
        case _:
            raise ValueError("write takes a path with old and new, or with text")
    return WRITTEN


def shorten(text: str) -> str:
    """Cut the middle of a long text."""
    if len(text) <= MAX_RESULT_CHARACTERS:
        return text
    half = MAX_RESULT_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"


def _lines(text: str, first: float = 1, last: float | None = None) -> str:
    """Return these lines. JSON allows 1.0 as an integer."""
    return "".join(text.splitlines(keepends=True)[int(first) - 1 : None if last is None else int(last)])


def _replaced(text: str, old: str, new: str, path: str) -> str:
    found = text.count(old) if old else 0
    if found != 1:
        raise ValueError(f"old occurs {found} times in {path}; give a passage that occurs once")
    return text.replace(old, new)

"""A tool that takes one text and answers by one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from temper.envs.core.step_result import tool_span
from temper.envs.core.task import Tool
from temper.envs.core.turn_text import BadCall, Call


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTool:
    """`run` takes the text of the one argument; ValueError for what the model did wrong."""

    argument: str
    run: Callable[[str], str]
    description: str = ""


def schemas(tools: Mapping[str, TextTool]) -> tuple[Tool, ...]:
    return tuple(_schema(name, tool) for name, tool in tools.items())


def _schema(name: str, tool: TextTool) -> Tool:
    parameters = {"type": "object", "properties": {tool.argument: {"type": "string"}}, "required": [tool.argument]}
    return {"type": "function", "function": {"name": name, "description": tool.description, "parameters": parameters}}


def answer_call(call: Call | BadCall, tools: Mapping[str, TextTool]) -> str:
    """Return what a tool answers; a mistake of the model is answered by a line that starts with `error:`."""
    with tool_span(call):
        return _answer(call, tools)


def _answer(call: Call | BadCall, tools: Mapping[str, TextTool]) -> str:
    if isinstance(call, BadCall):
        return call.error
    if call.name not in tools:
        return f"error: unknown tool; there are {', '.join(tools)}"
    tool = tools[call.name]
    text = call.arguments.get(tool.argument)
    if set(call.arguments) != {tool.argument} or not isinstance(text, str):
        return f"error: {call.name} takes one string, {tool.argument}"
    try:
        return tool.run(text)
    except ValueError as error:
        return f"error: {error}"

"""Tools of an environment, and one with a single text argument."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from temper.envs.core.step_result import tool_span
from temper.envs.core.task import Tool
from temper.envs.core.turn_text import BadCall, Call


class EnvTool(Protocol):
    """A tool that an environment answers itself."""

    def schema(self, name: str) -> Tool: ...

    def answer(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the result of a call. Raise `ValueError` with the model's mistake."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTool:
    """`run` takes the text of the only argument, and raises `ValueError` for a mistake of the model."""

    argument: str
    run: Callable[[str], str]
    description: str = ""

    def schema(self, name: str) -> Tool:
        parameters = {"type": "object", "properties": {self.argument: {"type": "string"}}, "required": [self.argument]}
        return {
            "type": "function",
            "function": {"name": name, "description": self.description, "parameters": parameters},
        }

    def answer(self, name: str, arguments: dict[str, Any]) -> str:
        text = arguments.get(self.argument)
        if set(arguments) != {self.argument} or not isinstance(text, str):
            raise ValueError(f"{name} takes one string, {self.argument}")
        return self.run(text)


def schemas(tools: Mapping[str, EnvTool]) -> tuple[Tool, ...]:
    return tuple(tool.schema(name) for name, tool in tools.items())


def answer_call(call: Call | BadCall, tools: Mapping[str, EnvTool]) -> str:
    """Return a tool's answer. A mistake of the model gets a line that starts with `error:`."""
    with tool_span(call):
        return _answer(call, tools)


def _answer(call: Call | BadCall, tools: Mapping[str, EnvTool]) -> str:
    if isinstance(call, BadCall):
        return call.error
    if call.name not in tools:
        return f"error: unknown tool; there are {', '.join(tools)}"
    try:
        return tools[call.name].answer(call.name, call.arguments)
    except ValueError as error:
        return f"error: {error}"

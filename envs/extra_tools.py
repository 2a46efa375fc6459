"""Tools that a run may lend to any environment: `envs.NAME.tools: [calculator, python]`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from envs.calculator import calculate
from envs.dialogue import BadCall, Call
from envs.program import Kind, Limits
from envs.sandbox import shared_sandbox
from envs.task import Tool

LIMITS = Limits(wall_s=5.0, cpu_s=2, memory_mb=512)
MAX_RESULT_CHARACTERS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraTool:
    """A tool that takes one text and answers by one; ValueError for what the model did wrong."""

    argument: str
    description: str
    run: Callable[[str], str]


def run_python(source: str) -> str:
    """What a Python program prints, in a sealed process of its own: nothing is kept from one call to the next.

    Raises ValueError for a program that breaks a limit or ends by an exception.
    """
    reply = shared_sandbox().attempt(lambda sandbox: sandbox.main(source, "", LIMITS))
    if reply.kind is Kind.VALUE:
        return str(reply.value)
    raise ValueError(f"{reply.kind.value}: {reply.detail}")


EXTRA_TOOLS = {
    "calculator": ExtraTool(
        argument="expression", description="Value of an expression of numbers, + - * / // % and ( ).", run=calculate
    ),
    "python": ExtraTool(
        argument="code", description="Runs a Python program and gives what it prints; keeps nothing.", run=run_python
    ),
}


def schemas(names: Iterable[str]) -> tuple[Tool, ...]:
    """The tools of these names in the Hugging Face format; ValueError for an unknown name."""
    return tuple(_schema(name) for name in names)


def _schema(name: str) -> Tool:
    if name not in EXTRA_TOOLS:
        raise ValueError(f"tools: {name!r} is no tool; there are {', '.join(EXTRA_TOOLS)}")
    tool = EXTRA_TOOLS[name]
    parameters = {"type": "object", "properties": {tool.argument: {"type": "string"}}, "required": [tool.argument]}
    return {
        "type": "function",
        "function": {"name": name, "description": tool.description, "parameters": parameters},
    }


def answer_call(call: Call | BadCall, names: Iterable[str]) -> str:
    """What a lent tool answers; a mistake of the model is answered by a line that starts with `error:`."""
    if isinstance(call, BadCall):
        return call.error
    if call.name not in names:
        return f"error: unknown tool; there are {', '.join(names)}"
    tool = EXTRA_TOOLS[call.name]
    text = call.arguments.get(tool.argument)
    if set(call.arguments) != {tool.argument} or not isinstance(text, str):
        return f"error: {call.name} takes one string, {tool.argument}"
    try:
        return tool.run(text)[:MAX_RESULT_CHARACTERS]
    except ValueError as error:
        return f"error: {error}"[:MAX_RESULT_CHARACTERS]

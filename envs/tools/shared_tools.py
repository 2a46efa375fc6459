"""Tools that a run may lend to any environment: `envs.NAME.tools: [calculator, python]`."""

from collections.abc import Iterable

from envs.sandbox.sandbox import shared_sandbox
from envs.sandbox.sealed_process import Limits, ReplyKind
from envs.tools.calculator import calculate
from envs.tools.text_tool import TextTool

LIMITS = Limits(wall_s=5.0, cpu_s=2, memory_mb=512)
MAX_RESULT_CHARACTERS = 4000


def run_python(source: str) -> str:
    """What a Python program prints, in a sealed process of its own: nothing is kept from one call to the next.

    Raises ValueError for a program that breaks a limit or ends by an exception.
    """
    reply = shared_sandbox().attempt(lambda sandbox: sandbox.run_main(source, "", LIMITS))
    if reply.kind is ReplyKind.VALUE:
        return str(reply.value)
    raise ValueError(f"{reply.kind.value}: {reply.detail}")


EXTRA_TOOLS = {
    "calculator": TextTool(
        argument="expression", description="Value of an expression of numbers, + - * / // % and ( ).", run=calculate
    ),
    "python": TextTool(
        argument="code", description="Runs a Python program and gives what it prints; keeps nothing.", run=run_python
    ),
}


RUN_PROGRAMS = frozenset({"python"})
"""Those that run what the model writes."""


def lent(names: Iterable[str]) -> dict[str, TextTool]:
    """The tools of these names; ValueError for an unknown name."""
    for name in names:
        if name not in EXTRA_TOOLS:
            raise ValueError(f"tools: {name!r} is no tool; there are {', '.join(EXTRA_TOOLS)}")
    return {name: EXTRA_TOOLS[name] for name in names}

"""Tools of a run that any of its environments may have: `envs.NAME.tools: [calculator, python]`."""

from collections.abc import Iterable

from temper.envs.sandbox.sandbox import shared_sandbox
from temper.envs.sandbox.sealed_process import Limits, ReplyKind
from temper.envs.tools.calculator import calculate
from temper.envs.tools.text_tool import TextTool

LIMITS = Limits(wall_s=5.0, cpu_s=2, memory_mb=512)
MAX_RESULT_CHARACTERS = 4000


def run_python(source: str) -> str:
    """Return what a Python program prints, in a sealed process of its own: nothing is kept from one call to the next."""
    reply = shared_sandbox().attempt(lambda sandbox: sandbox.run_main(source, "", LIMITS))
    if reply.kind is ReplyKind.VALUE:
        return str(reply.value)
    raise ValueError(f"{reply.kind.value}: {reply.detail}")


SHARED_TOOLS = {
    "calculator": TextTool(
        argument="expression", description="Value of an expression of numbers, + - * / // % and ( ).", run=calculate
    ),
    "python": TextTool(
        argument="code", description="Runs a Python program and gives what it prints; keeps nothing.", run=run_python
    ),
}


RUN_PROGRAMS = frozenset({"python"})


def shared_tools(names: Iterable[str]) -> dict[str, TextTool]:
    return {name: SHARED_TOOLS[name] for name in names}

"""Tools that a run may add to any environment: `envs.NAME.tools: [calculator, python, mine.lookup]`."""

from collections.abc import Iterable, Mapping

from temper.envs.core.task import TOOL_TIMEOUT_S
from temper.envs.sandbox.sandbox import shared_sandbox
from temper.envs.sandbox.sealed_process import Limits, ReplyKind
from temper.envs.tools.calculator import calculate
from temper.envs.tools.function_tool import make_function_tool
from temper.envs.tools.mcp_server import PER_EPISODE, PREFIX, SHARED, McpServers, list_mcp_tools
from temper.envs.tools.text_tool import EnvTool, TextTool

LIMITS = Limits(wall_s=5.0, cpu_s=2, memory_mb=512)
MAX_RESULT_CHARACTERS = 4000


def run_python(source: str) -> str:
    """Return the output of a Python program in a new sandboxed process. No state is kept between calls."""
    reply = shared_sandbox().attempt(lambda sandbox: sandbox.run_main(source, "", LIMITS))
    if reply.kind is ReplyKind.VALUE:
        return str(reply.value)
    raise ValueError(f"{reply.kind.value}: {reply.detail}")


SHARED_TOOLS: dict[str, TextTool] = {
    "calculator": TextTool(
        argument="expression", description="Value of an expression of numbers, + - * / // % and ( ).", run=calculate
    ),
    "python": TextTool(
        argument="code", description="Runs a Python program and gives what it prints; keeps nothing.", run=run_python
    ),
}


RUN_PROGRAMS = frozenset({"python"})


def shared_tools(
    names: Iterable[str], *, timeout_s: float = TOOL_TIMEOUT_S, episode_servers: McpServers = SHARED
) -> Mapping[str, EnvTool]:
    """Return tools by the names that the model uses. `names` has shared tools, functions of the user and MCP servers.

    `mcp-per-episode:` tools use `episode_servers`.

    Raise `ValueError` for a function that can't be imported or has no schema. Raise it also for a server that does not start,
    and for two tools with one name.
    """
    found: dict[str, EnvTool] = {}
    for name in names:
        for called, tool in _find_tools(name, timeout_s, episode_servers).items():
            if called in found:
                raise ValueError(f"two tools are named {called}; rename one of them")
            found[called] = tool
    return found


def _find_tools(name: str, timeout_s: float, episode_servers: McpServers) -> Mapping[str, EnvTool]:
    if name in SHARED_TOOLS:
        return {name: SHARED_TOOLS[name]}
    if name.startswith(PREFIX):
        return list_mcp_tools(name.removeprefix(PREFIX).strip(), timeout_s=timeout_s)
    if name.startswith(PER_EPISODE):
        return list_mcp_tools(name.removeprefix(PER_EPISODE).strip(), timeout_s=timeout_s, servers=episode_servers)
    if "." in name:
        function = make_function_tool(name, timeout_s=timeout_s)
        return {function.declared["function"]["name"]: function}
    raise ValueError(
        f"unknown tool {name!r}; use {', '.join(SHARED_TOOLS)}, a function such as module.f, or an MCP server such as "
        f"'{PREFIX}python server.py'"
    )

"""Tools of a server of the Model Context Protocol (MCP): `mcp:` and a command, which is started, or a URL."""

import asyncio
import atexit
import shlex
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from temper.envs.core.errors import EnvironmentFault, describe_error
from temper.envs.core.task import Tool

PREFIX = "mcp:"
START_S = 30.0
"""Time limit of a server's start, in seconds."""
INVALID_ARGUMENTS = -32602
"""JSON-RPC's code for arguments that a server refuses."""
GRACE_S = 5.0
"""Seconds in which a server may end by itself."""


class McpServer:
    """A connection to one server, which a thread of this process keeps open.

    Raise `ValueError` if the server does not start or lists no tools.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._client: Any = None
        started: Future[list[Any]] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name=place[:60], daemon=True)
        self._thread.start()
        try:
            listed = started.result(START_S)
        except Exception as error:
            self.close()
            raise ValueError(f"{place} does not start as an MCP server: {describe_error(error)}") from error
        if not listed:
            raise ValueError(f"{place} lists no tools")
        self.tools = {tool.name: _declared(tool) for tool in listed}

    def call(self, name: str, arguments: dict[str, Any], *, timeout_s: float) -> str:
        """Return the text of a result. Raise `ValueError` for the tool's own error and for a time-out, and
        `EnvironmentFault` if the server has ended.
        """
        calling: Coroutine[Any, Any, Any] = self._client.call_tool(name, arguments)
        future = asyncio.run_coroutine_threadsafe(calling, self._loop)
        try:
            result = future.result(timeout_s)
        except TimeoutError as error:
            future.cancel()
            raise ValueError(f"{name} gave no result in {timeout_s:g} s") from error
        except Exception as error:
            if getattr(error, "code", None) == INVALID_ARGUMENTS:
                raise ValueError(str(error)) from error
            self.close()
            raise EnvironmentFault(f"{self._place} did not answer: {describe_error(error)}") from error
        text = "\n".join(part.text for part in result.content if part.type == "text")
        if result.is_error:
            raise ValueError(text or "the call failed")
        return text

    @property
    def open(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(GRACE_S)

    def _run(self, started: "Future[list[Any]]") -> None:
        try:
            self._loop.run_until_complete(self._serve(started))
        except Exception as error:
            if not started.done():
                started.set_exception(error)
        finally:
            self._loop.close()

    async def _serve(self, started: "Future[list[Any]]") -> None:
        from mcp import Client  # it takes a second to import

        async with Client(_transport(self._place)) as client:
            self._client, listed, cursor = client, [], None
            while True:
                page = await client.list_tools(cursor=cursor)
                listed += page.tools
                if (cursor := page.next_cursor) is None:
                    break
            started.set_result(listed)
            await self._ended.wait()


def _transport(place: str) -> Any:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    if place.startswith(("http://", "https://")):
        return place
    command, *arguments = shlex.split(place)
    return stdio_client(StdioServerParameters(command=command, args=arguments), errlog=sys.__stderr__ or sys.stderr)


def _declared(tool: Any) -> Tool:
    declared = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": declared}


_SERVERS: dict[str, McpServer] = {}
_STARTING = threading.Lock()


def _server(place: str) -> McpServer:
    """Return the server of this process, after starting it if it is new or has ended."""
    with _STARTING:
        found = _SERVERS.get(place)
        if found is None or not found.open:
            found = _SERVERS[place] = McpServer(place)
        return found


@atexit.register
def _close_all() -> None:
    for server in _SERVERS.values():
        server.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """A tool of a server. The first use in a process opens its connection, which lasts as long as the process."""

    place: str
    declared: Tool
    timeout_s: float

    def schema(self, name: str) -> Tool:
        return self.declared

    def answer(self, name: str, arguments: dict[str, Any]) -> str:
        return _server(self.place).call(name, arguments, timeout_s=self.timeout_s)


def mcp_tools(place: str, *, timeout_s: float) -> dict[str, McpTool]:
    """Return the tools of a server by name. Raise `ValueError` if it can't be reached."""
    return {
        name: McpTool(place=place, declared=declared, timeout_s=timeout_s)
        for name, declared in _server(place).tools.items()
    }

"""Tools of a server of the Model Context Protocol (MCP): `mcp:` and a command, which is started, or a URL.

With `mcp-per-episode:` each episode has its own session, which its first call opens.
"""

import asyncio
import atexit
import logging
import os
import shlex
import threading
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO
from weakref import WeakSet

from temper.envs.core.errors import EnvironmentFault, describe_error
from temper.envs.core.task import Tool

PREFIX, PER_EPISODE = "mcp:", "mcp-per-episode:"
START_S = 30.0
"""Time limit of a server's start, in seconds."""
GRACE_S = 5.0
"""Seconds in which a server may end by itself."""
LAST_LINES = 5
"""Lines of a server's errors that a message shows."""
LOG = logging.getLogger(__name__)


OPEN: "WeakSet[McpServer]" = WeakSet()
"""All connections that may have to be ended with the process."""


class McpServer:
    """A connection to one server, which a thread of this process keeps open.

    Raise `ValueError` if the server does not start or lists no tools.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self.is_open = True
        OPEN.add(self)
        self._loop = asyncio.new_event_loop()
        self._client: Any = None
        self._errors: deque[str] = deque(maxlen=LAST_LINES)
        started: Future[list[Any]] = Future()
        self._serving = self._loop.create_task(self._serve(started))
        self._thread = threading.Thread(target=self._run, args=(started,), name=target[:60], daemon=True)
        self._thread.start()
        try:
            listed = started.result(START_S)
        except Exception as error:
            self.close()
            raise ValueError(f"{target} does not start as an MCP server: {self._describe(error)}") from error
        if not listed:
            self.close()
            raise ValueError(f"{target} lists no tools")
        self.tools = {tool.name: to_tool(tool) for tool in listed}

    def call(self, name: str, arguments: dict[str, Any], *, timeout_s: float) -> str:
        """Return the text of a result. Raise `ValueError` for the tool's own error, refused arguments and a time-out, and
        `EnvironmentFault` if the server fails or has ended.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types.jsonrpc import CONNECTION_CLOSED, INVALID_PARAMS

        try:
            calling: Coroutine[Any, Any, Any] = self._client.call_tool(name, arguments)
            future = asyncio.run_coroutine_threadsafe(calling, self._loop)
            result = future.result(timeout_s)
        except (Exception, CancelledError) as error:
            if isinstance(error, TimeoutError) and not future.done():
                future.cancel()
                raise ValueError(f"{name} gave no result in {timeout_s:g} s") from error
            code = error.code if isinstance(error, MCPError) else None
            if code == INVALID_PARAMS:
                raise ValueError(str(error)) from error
            if code == CONNECTION_CLOSED or self._loop.is_closed():
                self.close()
            raise EnvironmentFault(f"{self._target} did not answer: {self._describe(error)}") from error
        text = "\n".join(part.text for part in result.content if part.type == "text")
        if result.is_error:
            raise ValueError(text or "the call failed")
        return text

    def close(self) -> None:
        """End the connection, and a server that this process started."""
        self.is_open = False
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(GRACE_S)

    def _run(self, started: "Future[list[Any]]") -> None:
        try:
            self._loop.run_until_complete(self._serving)
        except (Exception, asyncio.CancelledError) as error:
            if not started.done():
                started.set_exception(error)
        finally:
            self._loop.close()

    def _describe(self, error: BaseException) -> str:
        """Return the error with the last lines that the server wrote to stderr."""
        wrote = " | ".join(self._errors)
        return describe_error(error) + (f"; the server wrote: {wrote}" if wrote else "")

    def _read_errors(self, descriptor: int) -> None:
        """Log the server's stderr, which may have a traceback for each mistake of the model."""
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._errors.append(line.strip())
                LOG.info("%s: %s", self._target, line.rstrip())

    async def _serve(self, started: "Future[list[Any]]") -> None:
        from mcp import Client  # it takes a second to import

        reading, writing = os.pipe()
        threading.Thread(target=self._read_errors, args=(reading,), name="errors of a server", daemon=True).start()
        with os.fdopen(writing, "w") as errors:
            async with Client(_transport(self._target, errors)) as client:
                errors.close()  # the server has a copy, and the thread ends with it
                self._client, listed, cursor = client, [], None
                while True:
                    page = await client.list_tools(cursor=cursor)
                    listed += page.tools
                    if (cursor := page.next_cursor) is None:
                        break
                started.set_result(listed)
                await asyncio.Event().wait()


def _transport(target: str, errors: TextIO) -> Any:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    if target.startswith(("http://", "https://")):
        return target
    command, *arguments = shlex.split(target)
    return stdio_client(StdioServerParameters(command=command, args=arguments), errlog=errors)


def to_tool(tool: Any) -> Tool:
    declared = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": declared}


class McpServers:
    """The open servers of a process or of an episode. Each starts with its first use."""

    def __init__(self) -> None:
        self._by_target: dict[str, McpServer] = {}
        self._starting = threading.Lock()

    def get(self, target: str) -> McpServer:
        """Return the server, after starting it if it is new or has ended. Raise `ValueError` if it does not start."""
        with self._starting:
            found = self._by_target.get(target)
            if found is None or not found.is_open:
                found = self._by_target[target] = McpServer(target)
            return found

    def close(self) -> None:
        with self._starting:
            while self._by_target:
                self._by_target.popitem()[1].close()


SHARED = McpServers()
"""The servers that all episodes of this process share."""


@atexit.register
def _close_all() -> None:
    for server in [*OPEN]:
        server.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """A tool of a server. Its first call starts the server in `servers` if needed."""

    target: str
    servers: McpServers
    declared: Tool
    timeout_s: float

    def schema(self, name: str) -> Tool:
        return self.declared

    def answer(self, name: str, arguments: dict[str, Any]) -> str:
        """See `EnvTool.answer`. Raise `EnvironmentFault` if the server does not start."""
        try:
            server = self.servers.get(self.target)
        except ValueError as error:
            raise EnvironmentFault(str(error)) from error
        return server.call(name, arguments, timeout_s=self.timeout_s)


def list_mcp_tools(target: str, *, timeout_s: float, servers: McpServers = SHARED) -> dict[str, McpTool]:
    """Return the tools of a server by name. The shared server lists the tools, `servers` answers the calls.

    Raise `ValueError` if it can't be reached.
    """
    return {
        name: McpTool(target=target, servers=servers, declared=declared, timeout_s=timeout_s)
        for name, declared in SHARED.get(target).tools.items()
    }

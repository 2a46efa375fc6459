"""An MCP server with a few tools, as a user would write it."""

import os
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("shop")


@server.tool()
def price(item: str, count: int = 1) -> str:
    """Price of items."""
    if item != "tea":
        raise ValueError(f"no {item} here")
    return str(3 * count)


SOLD: list[str] = []


@server.tool()
def sell(item: str) -> str:
    """Sell an item. Returns the number of items sold in this session."""
    SOLD.append(item)
    return str(len(SOLD))


@server.tool()
def wait(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "done"


@server.tool()
def crash() -> str:
    """End the server."""
    os._exit(1)


if __name__ == "__main__":
    server.run()

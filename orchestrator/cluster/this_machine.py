"""The machine that a process runs on: where the repository lies, and loopback with its free ports."""

import socket
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return a port of loopback that was free a moment ago."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that were free a moment ago, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]

"""The machine that a process runs on: where the repository lies, and loopback with its free ports."""

import contextlib
import random
import socket
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
IMPORTS = ROOT / ".types" if (ROOT / ".types").is_dir() else ROOT.parent
"""The folder from which `temper` is imported: in a checkout that of its link to itself, which `make setup` makes."""
IMPORTS_OF_COPY = ROOT / "requirements" / "imports"
"""The same in a job's copy of the checkout, in which a machine without the driver has no link."""
LOOPBACK = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""Ports that Linux gives to nobody by itself, as it does those from 32768: between the look at one of them and its use,
seconds later in another process, a connection of somebody else's would take it. Ray's workers listen below 20000."""


def free_port(host: str = LOOPBACK) -> int:
    """Return a port of one of this machine's addresses that was free a moment ago."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = LOOPBACK, *, among: range = PORTS) -> list[int]:
    """Return ports of an address that were free a moment ago, all different. Raise `RuntimeError` where there are too few."""
    found: list[int] = []
    for port in random.SystemRandom().sample(among, len(among)):
        if len(found) == count:
            return found
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            found.append(port)
    raise RuntimeError(f"no {count} free ports between {among.start} and {among.stop - 1}; end what holds them")

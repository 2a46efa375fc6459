"""Verify a seal: a sealed process tries forbidden actions, and its client checks the resulting level.

For the processes of computer algebra, reasoning-gym's scorers and simulators (`*_child.py`). The levels are the sandbox's.
These processes have no namespaces, so that 2 is their highest level. Standard library only.
"""

import logging
import mmap
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from temper.envs.core.errors import GraderError

LOG = logging.getLogger(__name__)
FULL = 2
KERNEL = "a Linux kernel of 5.13 or later"
MIN_LEVEL_VARIABLE = "TEMPER_SANDBOX_MIN_LEVEL"


def probe_seal(*, memory_bytes: int) -> dict[str, Any]:
    """Return the report of a sealed process: its level, and the forbidden actions that succeeded."""
    calls = _through(
        {
            "memory": lambda: mmap.mmap(-1, memory_bytes).close(),
            "fork": _fork,
            "network": lambda: socket.socket().close(),
            "signal": lambda: os.kill(os.getppid(), 0),
        }
    )
    files = _through({"read_files": lambda: os.open("/etc/passwd", os.O_RDONLY), "list_files": lambda: os.listdir("/")})
    return {"level": 0 if calls else 1 if files else FULL, "not_stopped": [*calls, *files], "uid": os.getuid()}


def require_seal(found: Mapping[str, Any], who: str) -> None:
    """Raise `GraderError` if a level is below `sandbox.min_level`. Log a warning if it is below 2 but allowed."""
    level, least = int(found["level"]), min(FULL, int(os.environ.get(MIN_LEVEL_VARIABLE, FULL)))
    if level == FULL:
        return
    line = f"the process of {who} is of sandbox level {level} of {FULL}, NOT STOPPED: {', '.join(found['not_stopped'])}"
    if level < least:
        raise GraderError(f"{line}; use {KERNEL}, or set sandbox.min_level={level}")
    LOG.warning("%s", line)


def _through(attempts: Mapping[str, Callable[[], Any]]) -> list[str]:
    succeeded = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except OSError:
            continue
        succeeded.append(name)
    return succeeded


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)

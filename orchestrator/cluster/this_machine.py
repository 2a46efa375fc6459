"""The machine of a process: the package, free ports of loopback, and module search paths.

Processes of a run search for modules in this package, then in libraries, then in the folder where the run started. By
default Python and Ray search that folder first, so a user's `random.py` would shadow the library's.
"""

import contextlib
import os
import random
import socket
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
"""The folder of the package `temper`: in a checkout its root."""
CODE = ("rewards", "envs", "rollout", "learner", "orchestrator")
"""The folders of its code."""
LOOPBACK = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""Ports that Linux never assigns by itself. It assigns from 32768 and could take a port before its use in another process.
Ray's workers listen below 20000."""


def free_port(host: str = LOOPBACK) -> int:
    """Return a port of a local address that was free a moment ago."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = LOOPBACK, *, among: range = PORTS) -> list[int]:
    """Return different ports of an address that were free a moment ago. Raise `RuntimeError` if there are too few."""
    found: list[int] = []
    for port in random.SystemRandom().sample(among, len(among)):
        if len(found) == count:
            return found
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            found.append(port)
    raise RuntimeError(
        f"no {count} free ports between {among.start} and {among.stop - 1}; end the processes that use them"
    )


FOLDER = "TEMPER_MODULES"
"""Environment variable with this folder for workers, which run in another one."""
HOOK = f"{__name__}.prepare_worker"
"""The function that Ray calls first in each worker."""


def module_folder() -> str:
    """Return this folder: the current one, or in a worker its driver's."""
    return os.environ.get(FOLDER, os.getcwd())


def search_last(folder: str) -> None:
    """Search modules in a folder of this process after all others."""
    os.environ["PYTHONSAFEPATH"] = "1"
    sys.path[:] = [*(each for each in sys.path if each not in ("", folder)), folder]


def import_folders() -> list[str]:
    """Return the folders of `sys.path` that give `temper` to this process, none if Python's own libraries have it."""
    installed = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    found = [each for each in sys.path if each not in installed and (Path(each) / "temper").resolve() == PACKAGE]
    return list(dict.fromkeys(found))


def prepare_worker() -> None:
    """Search modules as the driver does, and keep requests to this machine from its proxy."""
    search_last(os.environ[FOLDER])
    bypass_proxies()


def bypass_proxies() -> None:
    """Send this process's requests to its own machine directly, since a proxy can't reach loopback."""
    listed = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").split(",")
    if listed != ["*"]:
        os.environ["no_proxy"] = ",".join(dict.fromkeys([*filter(None, listed), LOOPBACK, "localhost"]))


def worker_variables() -> dict[str, str]:
    """Return the environment variables that give Ray's workers and their children this process's module search."""
    searched = dict.fromkeys([*import_folders(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    python_path = os.pathsep.join(filter(None, searched))
    return {"PYTHONPATH": python_path, "PYTHONSAFEPATH": "1", FOLDER: module_folder()}


class FrozenPath(list[str]):
    """The first search folders of Ray's workers. Ray can't add the current one."""

    def extend(self, folders: Iterable[str]) -> None:
        """Do nothing."""

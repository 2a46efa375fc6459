"""The machine of a process: the package, free ports of loopback, and the folders that Python searches for modules.

The processes of a run search this package first, then libraries, then the folder in which the run was started. By default
Python and Ray search that folder first, so a user's `random.py` would replace the library's.
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


FOLDER = "TEMPER_MODULES"
"""Variable of the environment that names this folder to workers, which run in another one."""
HOOK = f"{__name__}.search_as_driver"
"""What Ray calls first in each worker."""


def module_folder() -> str:
    """Return this folder: the current one, or in a worker that of its driver."""
    return os.environ.get(FOLDER, os.getcwd())


def search_last(folder: str) -> None:
    """Search a folder for modules after all others, in this process and its children."""
    os.environ["PYTHONSAFEPATH"] = "1"
    sys.path[:] = [*(each for each in sys.path if each not in ("", folder)), folder]


def import_folders() -> list[str]:
    """Return the folders of `sys.path` that give `temper` to this process; none if Python's own libraries have it."""
    installed = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    found = [each for each in sys.path if each not in installed and (Path(each) / "temper").resolve() == PACKAGE]
    return list(dict.fromkeys(found))


def search_as_driver() -> None:
    search_last(os.environ[FOLDER])


def worker_variables() -> dict[str, str]:
    """Return the variables of the environment by which workers of Ray and their children find modules as this process does."""
    searched = dict.fromkeys([*import_folders(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    python_path = os.pathsep.join(filter(None, searched))
    return {"PYTHONPATH": python_path, "PYTHONSAFEPATH": "1", FOLDER: module_folder()}


class FrozenPath(list[str]):
    """The folders that workers of Ray search first, to which Ray can't add the current one."""

    def extend(self, folders: Iterable[str]) -> None:
        """Leave it as it is."""

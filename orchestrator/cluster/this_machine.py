"""The machine of a process: the repository, free ports of loopback, and where modules are found.

The processes of a run look for modules among ours, then among libraries, then in the folder where the run was started.
Python and Ray would look in that folder first: a file `random.py` of an author's own would stand for the library's.
"""

import contextlib
import os
import random
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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


FOLDER = "TEMPER_MODULES"
"""Variable of the environment that names this folder to workers, which run in another one."""
HOOK = f"{__name__}.search_as_driver"
"""What Ray calls first in each worker."""


def module_folder() -> str:
    """Return this folder: the current one, or in a worker that of its driver."""
    return os.environ.get(FOLDER, os.getcwd())


def search_last(folder: str) -> None:
    """Find the modules of a folder in this process, where none of the same name lies elsewhere."""
    if folder not in sys.path:
        sys.path.append(folder)


def search_as_driver() -> None:
    search_last(os.environ[FOLDER])


def worker_variables() -> dict[str, str]:
    """Return the variables of the environment by which workers of Ray and their children find modules as this process does."""
    searched = [str(IMPORTS), str(IMPORTS_OF_COPY), os.environ.get("PYTHONPATH", "")]
    python_path = os.pathsep.join(filter(None, searched))
    return {"PYTHONPATH": python_path, "PYTHONSAFEPATH": "1", FOLDER: module_folder()}


class FirstOnes(list[str]):
    """The folders that workers of Ray search first, to which Ray can't add the current one."""

    def extend(self, folders: Iterable[str]) -> None:
        """Leave it as it is."""

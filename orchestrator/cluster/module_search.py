"""Where the processes of a run look for modules: ours, then libraries, then what lies in the folder where it was started.

Python, and Ray for its workers, would look in that folder first, where a folder `envs/` or a file `random.py` of an author's
own would stand for ours, or for the library's.
"""

import os
import sys
from collections.abc import Iterable

from temper.orchestrator.cluster.this_machine import IMPORTS, IMPORTS_OF_COPY

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

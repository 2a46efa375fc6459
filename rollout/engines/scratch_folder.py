"""The folder for an engine's temporary files: sockets and rendezvous files, which a killed engine leaves behind.

Imports no vLLM: the folder exists before the engine's processes.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from temper.envs.core.locked_folder import LockedFolder
from temper.envs.core.process import set_variables

PREFIX = "temper-engine-"
SOCKET_BYTES = 107
"""Longest path of a Unix socket on Linux."""
RANDOM_BYTES = 8
"""Length that `tempfile` adds to a prefix."""
SOCKET_NAME_BYTES = 36
"""vLLM names its sockets by UUIDs."""
SHORT = Path("/tmp")
VARIABLES = ("TMPDIR", "VLLM_RPC_BASE_PATH")
"""Variables for the temporary folder of child processes, and for vLLM's sockets."""


class ScratchFolder(LockedFolder):
    """The folder of one engine."""

    def __init__(self, base: Path | None = None) -> None:
        """`base` is its parent: by default the temporary folder, or /tmp if that path is too long for sockets."""
        super().__init__(PREFIX, base or scratch_base())

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Make it the temporary folder of this process and its children within the block. Close it on an error."""
        tempdir, tempfile.tempdir = tempfile.tempdir, str(self.path)
        try:
            with set_variables(dict.fromkeys(VARIABLES, str(self.path))):
                yield
        except BaseException:
            self.close()
            raise
        finally:
            tempfile.tempdir = tempdir


def scratch_base(inside: int = len(PREFIX) + RANDOM_BYTES + 1 + SOCKET_NAME_BYTES) -> Path:
    """Return the temporary folder, or /tmp if a socket `inside` bytes below it would have too long a path."""
    usual = Path(tempfile.gettempdir())
    return usual if len(os.fsencode(usual)) + 1 + inside <= SOCKET_BYTES else SHORT

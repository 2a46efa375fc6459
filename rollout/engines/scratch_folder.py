"""The folder for an engine's temporary files: sockets and rendezvous files, which a killed engine leaves behind.

Each engine has one in the temporary folder, held by a lock that ends with its owner. Making or removing one also removes
those without an owner. The lock is on the folder itself: cleaners of temporary files would delete a lock file, and systemd
skips locked folders.

Imports no vLLM: the folder exists before the engine's processes.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

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


class ScratchFolder:
    """A folder that exists until `close`, or after its process ended until another one is made or closed."""

    def __init__(self, base: Path | None = None) -> None:
        """`base` is its parent: by default the temporary folder, or /tmp if that path is too long for sockets."""
        self._base = base or scratch_base()
        remove_abandoned(self._base)
        self.path, self._lock = _create_locked_folder(self._base)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
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

    def close(self) -> None:
        """Remove it, and those without an owner. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        remove_abandoned(self._base)


def scratch_base() -> Path:
    usual = Path(tempfile.gettempdir())
    longest = len(os.fsencode(usual / PREFIX)) + RANDOM_BYTES + 1 + SOCKET_NAME_BYTES
    return usual if longest <= SOCKET_BYTES else SHORT


def remove_abandoned(base: Path | None = None) -> None:
    """Remove this user's folders without an owner. The next call retries failed removals."""
    for folder in (base or scratch_base()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                continue
            if (lock := _lock_of(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _create_locked_folder(base: Path) -> tuple[Path, int | None]:
    """Make a folder and lock it. Retry if another process removes it before the lock.

    The lock is None on a file system without locks: there the files of killed engines stay.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        try:
            lock = _lock_of(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return folder, None
        if lock is not None:
            return folder, lock


def _lock_of(folder: Path) -> int | None:
    """Lock a folder. None if another process holds the lock or has removed the folder.

    Child processes do not inherit the lock.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), folder.lstat()):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None

"""The folder for what an engine leaves in the temporary one: sockets and rendezvous files, which a kill would leave for ever.

Each engine has one, below the temporary folder, held by a lock that ends with its owner, however that ends. Whoever makes or
removes one removes those whose owners are no more, too. The lock is on the folder itself: a file in it would go with what
cleans the temporary folder of old files, and systemd leaves folders that are locked so alone.

Imports no vLLM: an engine's folder is there before its processes are.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "temper-engine-"
SOCKET_BYTES = 107
"""The longest path of a Unix socket on Linux."""
RANDOM_BYTES = 8
"""What `tempfile` adds to a prefix."""
SOCKET_NAME_BYTES = 36
"""vLLM names its sockets by UUIDs."""
SHORT = Path("/tmp")
VARIABLES = ("TMPDIR", "VLLM_RPC_BASE_PATH")
"""Where children look for the temporary folder, and vLLM for that of its sockets."""


class ScratchFolder:
    """A folder that is there until `close`, or until its process has ended and another one made or closed one."""

    def __init__(self, base: Path | None = None) -> None:
        """`base` is where it lies: by default the temporary folder, or /tmp where that one's path is too long for sockets."""
        self._base = base or scratch_base()
        remove_abandoned(self._base)
        self.path, self._lock = _create_locked_folder(self._base)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Make it the temporary folder of this process and of those it starts, during the block. Close it where that fails."""
        before = {name: os.environ.get(name) for name in VARIABLES}
        tempdir, tempfile.tempdir = tempfile.tempdir, str(self.path)
        os.environ.update(dict.fromkeys(VARIABLES, str(self.path)))
        try:
            yield
        except BaseException:
            self.close()
            raise
        finally:
            tempfile.tempdir = tempdir
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def close(self) -> None:
        """Remove it, and those whose owners are no more. May be called again."""
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
    """Remove this user's folders whose owners are no more. One that can't be removed now is left to the next call."""
    for folder in (base or scratch_base()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                continue
            if (lock := _lock_of(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _create_locked_folder(base: Path) -> tuple[Path, int | None]:
    """Make a folder and lock it. Another process may take it for an abandoned one before that: then make another one.

    The lock is None on a file system without such locks, where what a kill leaves stays.
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
    """Take the lock of a folder; None where another one has it, or has removed the folder meanwhile.

    It belongs to this process alone: no program that it starts inherits the open folder.
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

"""Folders for temporary files that a killed process leaves behind.

Each is held by a lock that ends with its owner. Making or removing one also removes those without an owner. The lock is on
the folder itself: cleaners of temporary files would delete a lock file, and systemd skips locked folders.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path


class LockedFolder:
    """A folder that exists until `close`, or after its process ended until another one is made or closed."""

    def __init__(self, prefix: str, base: Path) -> None:
        """`base` is its parent. Its name begins with `prefix`, as those that it removes."""
        self._prefix, self._base = prefix, base
        remove_abandoned(prefix, base)
        self.path, self._lock = _create_locked_folder(prefix, base)

    def close(self) -> None:
        """Remove it, and those without an owner. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        remove_abandoned(self._prefix, self._base)


def remove_abandoned(prefix: str, base: Path) -> None:
    """Remove this user's folders without an owner. The next call retries failed removals."""
    for folder in base.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                continue
            if (lock := _lock_of(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _create_locked_folder(prefix: str, base: Path) -> tuple[Path, int | None]:
    """Make a folder and lock it. Retry if another process removes it before the lock.

    The lock is None on a file system without locks: there the files of killed processes stay.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
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

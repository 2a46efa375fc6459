"""Small disks that only the processes of a test see: tmpfs in a mount namespace that a sleeping process holds."""

import errno
import shutil
import subprocess
from pathlib import Path

NEEDS = ("unshare", "nsenter", "mount")


class SmallDisks:
    """Disks of given sizes at given folders, for the commands that `before` runs."""

    def __init__(self, sizes: dict[Path, str]) -> None:
        """Mount them in this order. Raise `OSError` without permission or tools."""
        missing = [name for name in NEEDS if shutil.which(name) is None]
        if missing:
            raise OSError(f"no {', '.join(missing)}")
        lines = [f"mkdir -p {path} && mount -t tmpfs -o size={size} tmpfs {path}" for path, size in sizes.items()]
        script = " && ".join([*lines, "echo mounted", "exec sleep 3600"])
        command = ["unshare", "-m", "sh", "-c", script]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline().strip()
        if said != "mounted":
            self.close()
            raise OSError(f"no tmpfs can be mounted in a namespace: {said}")
        self.before = ["nsenter", "-t", str(self._holder.pid), "-m", f"--wd={Path.cwd()}"]

    def seen(self, path: Path) -> Path:
        """Return this process's path to a path of the namespace."""
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def fill(self, folder: Path, *, leave: int) -> None:
        """Fill a disk but for so many bytes, or whole if a run takes some of it meanwhile."""
        free = shutil.disk_usage(self.seen(folder)).free
        with self._filler(folder).open("wb", buffering=0) as file:
            left = max(0, free - leave)
            try:
                while left > 0:
                    left -= file.write(bytes(min(left, 1 << 20)))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self, folder: Path) -> None:
        """Free the space from `fill`."""
        self._filler(folder).unlink()

    def close(self) -> None:
        """Unmount all, with the last process of the namespace."""
        self._holder.kill()
        self._holder.communicate()

    def _filler(self, folder: Path) -> Path:
        return self.seen(folder) / "filler"

"""What Ray's workers print: files in the folder of Ray's session, copied to where people look for them."""

import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILE_BYTES = 8 * 2**20
"""Of a longer file its end is copied."""
FOLDER_BYTES = 64 * 2**20
"""What is kept in all: the newest files."""
COPY_S = 10.0
"""After so many seconds no further file is copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLogs:
    """The files of this machine's workers. `job` is the run's number in a cluster with other jobs, "*" in one of its own."""

    folder: Path
    job: str = "*"

    def keep(self, into: Path) -> str:
        """Copy the logs, the newest first, within the bounds above; return the reason of a failure, or "".

        Names are new in each session, so that a continued run keeps those of before.
        """
        deadline, copied = time.monotonic() + COPY_S, 0
        try:
            for file in _newest_first(self.folder.glob(f"worker-*-{self.job}-*")):
                if time.monotonic() > deadline:
                    return f"not all of {self.folder} was copied in {COPY_S:g} s"
                into.mkdir(exist_ok=True)
                copied += _copy_end(file, into / file.name)
                if copied > FOLDER_BYTES:
                    break
            _remove_old(into)
        except OSError as error:
            return f"{into}: {error.strerror or error}"
        return ""


def _newest_first(files: Iterable[Path]) -> list[Path]:
    """Return files that are not empty."""
    known = [(file.stat(), file) for file in files]
    return [file for stat, file in sorted(known, key=lambda one: -one[0].st_mtime) if stat.st_size]


def _copy_end(source: Path, target: Path) -> int:
    """Copy a file, or the end of a long one, whole or not at all, with its time; return the bytes of the copy."""
    part = target.with_name(target.name + ".tmp")
    try:
        with source.open("rb") as file, part.open("wb") as copy:
            size = os.fstat(file.fileno()).st_size
            if size > FILE_BYTES:
                file.seek(size - FILE_BYTES)
                copy.write(f"... the first {size - FILE_BYTES} bytes of {source} are left out\n".encode())
            shutil.copyfileobj(file, copy)
        shutil.copystat(source, part)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return target.stat().st_size


def _remove_old(folder: Path) -> None:
    size = 0
    for file in _newest_first(folder.glob("worker-*")):
        size += file.stat().st_size
        if size > FOLDER_BYTES:
            file.unlink()

"""The files of a folder, with quotas, and a shell command on them. Standard library only, since containers run this file."""

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

MAX_FILES, MAX_FILE_BYTES, MAX_BYTES = 64, 65_536, 262_144
MAX_OUTPUT_BYTES = 2**21
SHM = "/dev/shm"


def write_files(folder: str | Path, files: Mapping[str, str]) -> None:
    """Write the texts that differ from the files of the folder."""
    for path, text in files.items():
        place, content = Path(folder, path), text.encode(errors="replace")
        if place.is_symlink():
            place.unlink()
        if not place.is_file() or place.read_bytes() != content:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


def files_in(folder: str | Path) -> dict[str, str]:
    """Return the text files of a folder by path, without links and hidden or compiled files. Raise `ValueError` for more
    than a workspace holds.
    """
    found: dict[str, str] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        for path in (Path(place, name) for name in names if not name.startswith(".")):
            if path.is_symlink() or not path.is_file():
                continue
            if path.stat().st_size > MAX_FILE_BYTES or len(found) == MAX_FILES:
                raise ValueError(f"{path.relative_to(folder)} is beyond the quotas of a workspace")
            with suppress(UnicodeDecodeError):
                found[path.relative_to(folder).as_posix()] = path.read_bytes().decode()
    return found


def run_command(files: Mapping[str, str], command: str) -> str:
    """Write the files to the current folder and run a shell command. Return its output, which ends with the exit code."""
    write_files("", files)
    place = SHM if os.access(SHM, os.W_OK) else None  # the command may fill /tmp, and podman 5 makes SHM read-only
    with TemporaryFile(dir=place) as output:  # a pipe could be kept open by processes in the background
        code = subprocess.call(["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        output.seek(0)
        return f"{output.read(MAX_OUTPUT_BYTES).decode(errors='replace')}\nexit {code}\n"

"""Name the files that two packages of an environment both have: `python requirements/overlaps.py LOCK...`.

Installers write packages next to each other, so if two wheels contain the same path with different bytes, whichever is
installed last wins. Only the list of files of each wheel is read, by ranges of bytes from the index, so nothing is installed.
A file that is equal in both does no harm and is not named. The exit status is 1 if files overlap. The last line names the
wheels that could not be read.
"""

import argparse
import io
import json
import re
import sys
import urllib.request
import zipfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

INDEX = "https://pypi.org/simple"
PYTHON = (3, 11)
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
TAGS: list[Tag] = [*cpython_tags(PYTHON, platforms=PLATFORMS), *compatible_tags(PYTHON, "cp311", PLATFORMS)]
"""Tags of the platform of the lock files, best first."""
TIMEOUT_S = 60.0
TRIES = 3
READERS = 16
NEVER_IMPORTED = {
    "build_backend.py",  # how flashinfer-python and torch-c-dlpack-ext were built, left in their wheels
}
"""Paths that may be in two packages, as nothing imports them once they are installed."""

Files = Mapping[str, tuple[int, int]]
"""Installed path -> checksum and size."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Pin:
    """One line of a lock: a package at a version."""

    name: str
    version: str


class RemoteFile(io.RawIOBase):
    """A file of a web server that answers ranges of bytes."""

    def __init__(self, url: str, size: int) -> None:
        self._url = url
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read anywhere."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the file."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """Return the place in the file."""
        return self._at

    def read(self, count: int = -1) -> bytes:
        """Fetch the next bytes. Raises `ValueError` where the server answers with others."""
        end = self._size if count < 0 else min(self._at + count, self._size)
        if end <= self._at:
            return b""
        data = fetch(self._url, Range=f"bytes={self._at}-{end - 1}")
        if len(data) != end - self._at:
            raise ValueError(f"{self._url} does not answer ranges of bytes")
        self._at = end
        return data


def fetch(url: str, **headers: str) -> bytes:
    """Return the answer of a server. Raise `OSError` if it gives none after `TRIES` requests."""
    left = TRIES
    while True:
        left -= 1
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S) as answer:
                data: bytes = answer.read()
                return data
        except OSError:
            if not left:
                raise


def pins(lock: str) -> list[Pin]:
    """Return the packages of a lock file's text."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", lock, re.MULTILINE)
    return [Pin(name=canonicalize_name(name), version=version) for name, version in found]


def best_wheel(names: Iterable[str], pin: Pin) -> str | None:
    """Return the file name of the wheel that an installer would take, None if there is none."""
    ranks = {tag: rank for rank, tag in enumerate(TAGS)}
    found: list[tuple[int, str]] = []
    for file in names:
        if f"-{pin.version}-" not in file:
            continue
        try:
            name, version, _, tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            continue
        if name == pin.name and version == Version(pin.version) and not ranks.keys().isdisjoint(tags):
            found.append((min(ranks[tag] for tag in tags if tag in ranks), file))
    return min(found)[1] if found else None


def installed_files(wheel: zipfile.ZipFile) -> Files:
    """Return the files that a wheel writes. Those in `purelib` and `platlib` of its `.data` folder go next to the others."""
    files = {}
    for entry in wheel.infolist():
        if not entry.is_dir():
            path = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", entry.filename)
            files[re.sub(r"^[^/]+\.data/", "../", path)] = (entry.CRC, entry.file_size)
    return files


def read_files(pin: Pin, *, index: str, folder: Path | None) -> Files | None:
    """Return the files of a package's wheel, from a folder or the index, or None if neither has one."""
    if folder is not None:
        local = best_wheel((path.name for path in folder.glob("*.whl")), pin)
        if local:
            with zipfile.ZipFile(folder / local) as wheel:
                return installed_files(wheel)
    if "+" in pin.version:
        return None  # such versions are on indexes of their own only
    page = fetch(f"{index}/{pin.name}/", Accept="application/vnd.pypi.simple.v1+json")
    on_index = {file["filename"]: file for file in json.loads(page)["files"]}
    name = best_wheel(on_index, pin)
    if name is None:
        return None
    remote = RemoteFile(on_index[name]["url"], on_index[name]["size"])
    with zipfile.ZipFile(remote) as wheel:
        return installed_files(wheel)


def overlaps(contents: Mapping[Pin, Files]) -> dict[tuple[Pin, Pin], list[str]]:
    """Return the paths that differ between each two packages which both hold them."""
    holders: dict[str, list[Pin]] = {}
    for pin, files in contents.items():
        for path in files:
            holders.setdefault(path, []).append(pin)
    found: dict[tuple[Pin, Pin], list[str]] = {}
    for path, several in holders.items():
        if path in NEVER_IMPORTED:
            continue
        for first, second in combinations(several, 2):
            if contents[first][path] != contents[second][path]:
                found.setdefault((first, second), []).append(path)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Check the packages of one or more lock files that are installed together; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("locks", nargs="+", type=Path, metavar="LOCK")
    parser.add_argument("--index", default=INDEX, help="a package index with JSON pages")
    parser.add_argument("--find-links", type=Path, help="a folder of wheels that is looked into first")
    chosen = parser.parse_args(arguments)
    wanted = sorted({pin.name: pin for lock in chosen.locks for pin in pins(lock.read_text())}.values())
    read = partial(read_files, index=chosen.index.rstrip("/"), folder=chosen.find_links)
    with ThreadPoolExecutor(READERS) as readers:
        contents = dict(zip(wanted, readers.map(read, wanted), strict=True))
    found = overlaps({pin: files for pin, files in contents.items() if files is not None})
    for (first, second), paths in found.items():
        shown = ", ".join(sorted(paths)[:5])
        print(f"{first.name}=={first.version} and {second.name}=={second.version} share {len(paths)} files: {shown}")
    unread = [f"{pin.name}=={pin.version}" for pin, files in contents.items() if files is None]
    print(f"read {len(wanted) - len(unread)} wheels of {', '.join(str(lock) for lock in chosen.locks)}: ", end="")
    print(f"{len(found)} pairs overlap" + (f"; without a wheel: {', '.join(unread)}" if unread else ""))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

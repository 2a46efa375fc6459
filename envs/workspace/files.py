"""The files of an episode, in memory with quotas, and programs on them in the sandbox."""

import posixpath
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from temper.envs.sandbox.sandbox import shared_sandbox
from temper.envs.sandbox.sealed_process import Limits, ReplyKind
from temper.envs.workspace import importer

MAX_FILES, MAX_FILE_BYTES, MAX_BYTES = 64, 65_536, 262_144
MAX_PATH = 200
MEMORY_MB = 512
IMPORTER = Path(importer.__file__).read_text(encoding="utf-8")
NO_SHELL = "there is no shell; use python FILE, python -c CODE or python -m unittest"
TIMED_OUT = 124
UNITTEST_TIME = re.compile(r"^(Ran \d+ tests?) in [\d.]+s$", re.MULTILINE)


class Workspace(Protocol):
    """The files of one episode. Each method raises `ValueError` for the model's mistake."""

    def exec(self, command: str, *, timeout_s: float) -> tuple[int, str]:
        """Return the exit code and the output of a command on the files. A time-out has the code 124."""
        ...

    def read(self, path: str) -> str: ...

    def write(self, path: str, text: str) -> None: ...

    def snapshot(self) -> dict[str, str]:
        """Return a copy of the files by path."""
        ...


class SandboxWorkspace:
    """Files in memory. Commands are Python programs in the sandbox: they read the files, and can't change them."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files: dict[str, str] = {}
        for path, text in files.items():
            self.write(path, text)

    def exec(self, command: str, *, timeout_s: float) -> tuple[int, str]:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ValueError(f"the command can't be read: {error}") from None
        match words:
            case ["python" | "python3", "-c", _, *_] | ["python" | "python3", "-m", "unittest", *_]:
                pass
            case ["python" | "python3", file, *_] if not file.startswith("-"):
                pass
            case _:
                raise ValueError(NO_SHELL)
        limits = Limits(wall_s=timeout_s, cpu_s=max(1, int(timeout_s)), memory_mb=MEMORY_MB)
        source = f"{program(self.files)}run(_importer, {words[1:]!r})\n"
        reply = shared_sandbox().attempt(lambda sandbox: sandbox.run_main(source, "", limits))
        if reply.kind is not ReplyKind.VALUE:
            code = TIMED_OUT if reply.kind is ReplyKind.TIME else 1
            return code, f"{reply.kind.value}: {reply.detail}"
        before, mark, ending = UNITTEST_TIME.sub(r"\1", reply.value).rpartition(importer.EXIT_MARK)
        if not mark:  # the program ended its process
            return 0, ending
        number, _, after = ending.partition("\n")
        return int(number) if number.isdecimal() else 1, before + after

    def read(self, path: str) -> str:
        path = clean_path(path)
        if path not in self.files:
            raise ValueError(f"no file {path}; there are {', '.join(sorted(self.files))}"[:1000])
        return self.files[path]

    def write(self, path: str, text: str) -> None:
        after = self.files | {clean_path(path): text}
        sizes = [len(content.encode(errors="replace")) for content in after.values()]
        if len(sizes) > MAX_FILES or max(sizes) > MAX_FILE_BYTES or sum(sizes) > MAX_BYTES:
            raise ValueError(
                f"too large: at most {MAX_FILES} files, {MAX_FILE_BYTES} bytes a file, {MAX_BYTES} bytes in all"
            )
        self.files = after

    def snapshot(self) -> dict[str, str]:
        return dict(self.files)


def clean_path(path: str) -> str:
    """Return the normal form of a path below the workspace's folder. Raise `ValueError` if it leaves the folder."""
    clean = posixpath.normpath(path)
    if not path or len(path) > MAX_PATH or not path.isprintable() or clean.startswith("/") or clean in (".", ".."):
        raise ValueError(f"path {path!r:.80} is no path of a file in the workspace; use one such as src/main.py")
    if clean.startswith("../"):
        raise ValueError(f"path {path!r:.80} leaves the workspace; use one such as src/main.py")
    return clean


def program(files: Mapping[str, str]) -> str:
    """Return the source that makes these files importable in the sandbox. Each line is a separate literal, since
    the sandbox searches the source for imports of numpy and threads.
    """
    texts = ",\n".join(f"{path!r}: ({_literals(text)})" for path, text in files.items())
    return f"{IMPORTER}\n_importer = install({{{texts}}})\n"


def _literals(text: str) -> str:
    return "\n".join(map(repr, text.splitlines(keepends=True))) or "''"

"""The files of an episode, in memory with quotas, and programs on them in the sandbox."""

import posixpath
import re
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from temper.envs.sandbox.sandbox import Sandbox, shared_sandbox
from temper.envs.sandbox.sealed_process import WAITS, Limits, Reply, ReplyKind
from temper.envs.workspace import importer
from temper.envs.workspace.folder import MAX_BYTES, MAX_FILE_BYTES, MAX_FILES

MAX_PATH = 200
EXEC_S, EPISODE_S = 10.0, 60.0  # seconds of a program, and of all programs of an episode
MEMORY_MB = 512
IMPORTER = Path(importer.__file__).read_text(encoding="utf-8")
COMMAND = re.compile(r"\s*python3?\s+(-c\s+\S|[^-\s])")


class Workspace:
    """The files of one episode, in memory. Commands are Python programs in the sandbox, which can't change the files.

    The methods raise `ValueError` for the model's mistake. `left_s` are the seconds that programs may still take.
    """

    def __init__(self, files: Mapping[str, str], *, left_s: float = EPISODE_S) -> None:
        self.files, self.left_s = dict[str, str](), left_s
        for path, text in files.items():
            self.write(path, text)

    def exec(self, command: str) -> str:
        """Return the output of a command. It ends with the exit code, or is the limit that the program exceeded."""
        if self.left_s <= 0:
            raise ValueError("no time left")
        reply = shared_sandbox().attempt(lambda sandbox: self._timed(sandbox, command))
        return reply.value if reply.kind is ReplyKind.VALUE else f"{reply.kind.value}: {reply.detail}"

    def _timed(self, sandbox: Sandbox, command: str) -> Reply:
        limits = Limits(wall_s=min(EXEC_S, self.left_s), cpu_s=int(EXEC_S), memory_mb=MEMORY_MB)
        start, waited = time.monotonic(), WAITS.seconds
        reply = self.run(sandbox, command, limits)
        used = time.monotonic() - start - (WAITS.seconds - waited)
        self.left_s -= max(used, limits.wall_s) if reply.kind is ReplyKind.TIME else used
        return reply

    def run(self, sandbox: Sandbox, command: str, limits: Limits) -> Reply:
        if COMMAND.match(command) is None:
            raise ValueError("there is no shell; use python FILE or python -c CODE")
        source = f"{program(self.files)}run(_importer, {shlex.split(command)[1:]!r})\n"
        reply = sandbox.run_main(source, "", limits)
        return replace(reply, value=_hide_place(reply.value or ""), detail=_hide_place(reply.detail))

    def close(self) -> None:
        """Release the resources of its commands."""

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


def clean_path(path: str) -> str:
    """Return the normal form of a path below the workspace's folder. Raise `ValueError` if it leaves the folder."""
    clean = posixpath.normpath(path)
    if (
        not path
        or len(path) > MAX_PATH
        or not path.isprintable()
        or clean.startswith(("/", "../"))
        or clean in (".", "..")
    ):
        raise ValueError(f"path {path!r:.80} is not a file path in the workspace; use one such as src/main.py")
    return clean


def program(files: Mapping[str, str]) -> str:
    """Return the source that makes these files importable in the sandbox. Each line is a separate literal, since
    the sandbox searches the source for imports of numpy and threads.
    """
    texts = ",\n".join(f"{path!r}: ({_literals(text)})" for path, text in files.items())
    return f"{IMPORTER}\n_importer = install({{{texts}}})\n"


def _hide_place(text: str) -> str:
    return text.replace(sys.prefix, "/python").replace(sys.base_prefix, "/python")


def _literals(text: str) -> str:
    return "\n".join(map(repr, text.splitlines(keepends=True))) or "''"

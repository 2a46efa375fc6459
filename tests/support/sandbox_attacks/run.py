"""Every attack against a sandbox, and a look from outside whether it succeeded.

    PYTHONPATH=tests python -m support.sandbox_attacks.run [level]

prints the outcome of each. The exit status is 1 if an attack succeeds that is not known to succeed at this level.
"""

import inspect
import os
import platform
import secrets
import shutil
import socket
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from support.sandbox_attacks import attacks, cheats

from temper.envs.core.errors import SandboxError
from temper.envs.sandbox.sandbox import Sandbox
from temper.envs.sandbox.sealed_process import Limits, Reply, ReplyKind

LIMITS = Limits(wall_s=2.0, cpu_s=1, memory_mb=256)
OVERSTAY_S = 10.0
LEFT_S = 10.0
HONEST_LIMITS = Limits(wall_s=30.0, cpu_s=5)
VARIABLE = "TEMPER_SANDBOX_CANARY"
ATTACKS: dict[str, ModuleType] = {
    name: module
    for module in (attacks, cheats)
    for name, function in vars(module).items()
    if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
}
KNOWN = {
    3: {},
    2: {
        "finds_files": "whether a file exists, its size and times, where a link points, but not what is in it",
        "sees_processes": "ids of its parent and of other processes, but not what they do",
        "sees_the_host_name": "the name of the machine",
    },
}
"""Attacks that succeed at a level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The outcome of an attack."""

    name: str
    succeeded: bool
    how: str


class Target:
    """The target of attacks: a sandbox whose parent holds a secret in a file, in its environment and in its memory."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.secret = f"secret-{secrets.token_hex(16)}"
        os.environ[VARIABLE] = self.secret
        self.folder = Path(tempfile.mkdtemp(prefix="temper-target-"))
        self.file = self.folder / "tests.json"
        self.file.write_text(self.secret)
        self.folder.chmod(0o777)
        self.file.chmod(0o666)
        self.sandbox = Sandbox(min_level=level, max_level=level)
        self.zygote = self.sandbox.warm()
        self.sockets = [socket.socket(), socket.socket(type=socket.SOCK_DGRAM)]
        self.sockets += [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
        name = f"temper-{secrets.token_hex(8)}"
        addresses: list[Any] = [("127.0.0.1", 0), ("127.0.0.1", 0), f"\0{name}", str(self.folder / "socket")]
        for opened, address in zip(self.sockets, addresses, strict=True):
            opened.bind(address)
            opened.setblocking(False)
            if opened.type == socket.SOCK_STREAM:
                opened.listen()
        (self.folder / "socket").chmod(0o777)
        self.hint = {
            "file": str(self.file),
            "folder": str(self.folder),
            "name": name,
            "variable": VARIABLE,
            "pids": [os.getpid(), self.zygote.pid],
            "host": platform.node(),
            "tcp": self.sockets[0].getsockname()[1],
            "udp": self.sockets[1].getsockname()[1],
            "abstract": f"\0{name}",
            "path": str(self.folder / "socket"),
        }
        self.before = self._contents()

    def attack(self, name: str) -> Attempt:
        """Run one attack."""
        start = time.monotonic()
        try:
            reply = self._reply(name)
        except SandboxError as error:
            return Attempt(name=name, succeeded=True, how=f"obtained an infrastructure failure: {error}")
        if reply.kind is ReplyKind.VALUE and (claim := self.judge(reply.value)):
            return Attempt(name=name, succeeded=True, how=claim)
        if time.monotonic() - start > LIMITS.wall_s + OVERSTAY_S:
            return Attempt(name=name, succeeded=True, how="outlasted its limits")
        traces = self.traces()
        how = "; ".join(traces) or f"{reply.kind.value} {reply.detail}"
        return Attempt(name=name, succeeded=bool(traces), how=how)

    def judge(self, value: Any) -> str | None:
        """Return the evidence of success in an attack's value, or None."""
        if value == self.secret:
            return "found the secret"
        return f"says that it succeeded: {str(value)[:80]}" if value and value != "wrong" else None

    def _reply(self, name: str) -> Reply:
        source = inspect.getsource(ATTACKS[name])
        if name not in cheats.WHOLE:
            return next(self.sandbox.call_each(source, name, [[self.hint]], LIMITS))
        return self.sandbox.run_main(f"{source}\nif {name}({self.hint!r}):\n    print('succeeded')", "", LIMITS)

    def _contents(self) -> dict[str, tuple[int, bytes]]:
        return {
            path.name: (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
            for path in sorted(self.folder.iterdir())
        }

    def traces(self) -> list[str]:
        """Return the traces and changes of the attack outside."""
        name, traces = self.hint["name"], []
        folders = [path for path in (*attacks.FOLDERS, "/proc") if Path(path).is_dir()]
        if self._contents() != self.before or any((Path(folder) / str(name)).exists() for folder in folders):
            traces.append("files were changed")
        if any(_was_reached(opened) for opened in self.sockets):
            traces.append("a socket was reached")
        if not _ends(self.zygote.pid):
            traces.append("a process was left")
        state = Path(f"/proc/{self.zygote.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        if self.sandbox.warm() is not self.zygote or state not in "RSD":
            traces.append(f"the zygote was disturbed (state {state})")
        honest = next(self.sandbox.call_each("def f(x):\n    return sorted(x)", "f", [[[2, 1]]], HONEST_LIMITS))
        if honest.value != [1, 2]:
            traces.append(f"the next program was disturbed: {honest.kind.value} {honest.detail}")
        return traces

    def close(self) -> None:
        """End the sandbox and clear up."""
        self.sandbox.close()
        for opened in self.sockets:
            opened.close()
        shutil.rmtree(self.folder)
        del os.environ[VARIABLE]


def _was_reached(opened: socket.socket) -> bool:
    """Return whether something arrived at a socket that does not block."""
    try:
        opened.recv(1) if opened.type == socket.SOCK_DGRAM else opened.accept()
    except BlockingIOError:
        return False
    return True


def _ends(zygote: int) -> bool:
    """Return whether all forks of a zygote end soon, orphans included."""
    deadline = time.monotonic() + LEFT_S
    while left := _forks(zygote):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return not left


def _forks(zygote: int) -> list[int]:
    """Return the zygote's children, and orphans with its command."""
    command, found = Path(f"/proc/{zygote}/cmdline").read_bytes(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == zygote or (parent == 1 and (folder / "cmdline").read_bytes() == command):
                found.append(int(folder.name))
        except (OSError, IndexError):
            continue
    return found


def main() -> int:
    """Run all attacks at a level and print their results."""
    level = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    unknown = 0
    with closing(Target(level)) as target:
        for name in ATTACKS:
            outcome = target.attack(name)
            unknown += outcome.succeeded and name not in KNOWN[level]
            print(
                f"{'SUCCEEDED' if outcome.succeeded else 'stopped':9}  {name.replace('_', ' '):40} {outcome.how[:90]}"
            )
    print(f"level {level}: {len(ATTACKS)} attacks, {unknown} succeeded beyond the {len(KNOWN[level])} known")
    return int(unknown > 0)


if __name__ == "__main__":
    sys.exit(main())

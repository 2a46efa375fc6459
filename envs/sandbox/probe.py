"""Find the isolation of the sandbox by running a program that attempts forbidden actions."""

import platform
import sys
from dataclasses import dataclass

from temper.envs.core.errors import SandboxError
from temper.envs.sandbox.sealed_process import Limits, ReplyKind, SealedProcess
from temper.envs.sandbox.zygote_client import Zygote

LIMITS = Limits(wall_s=10.0, cpu_s=5, memory_mb=256)
ATTACKS = """
import colorsys, os

def memory():
    return len(bytearray(1 << 30)) > 0

def fork():
    if os.fork() == 0:
        os._exit(0)
    return True

def execute():
    return os.posix_spawn("/bin/true", ["true"], {}) > 0

def network():
    import _socket
    return _socket.socket() is not None

def signal_parent():
    return os.kill(os.getppid(), 0) is None

def read_files():
    return len(open("/etc/passwd").read()) > 0

def list_files():
    return len(os.listdir("/")) > 0

def write_files():
    return os.open("/dev/shm/probe", os.O_CREAT | os.O_RDWR) >= 0 and os.unlink("/dev/shm/probe") is None

def read_processes():
    return len(open("/proc/1/cmdline").read()) > 0

def find_files():
    return os.lstat(EXECUTABLE) is not None

def see_processes():
    return os.getpid() > 1 or os.getppid() > 0

def see_host():
    return os.uname().nodename == HOST
"""
LIMITS_AND_CALLS = ("memory", "fork", "execute", "network", "signal_parent")
FILES = ("read_files", "list_files", "write_files", "read_processes")
SIGHT = ("find_files", "see_processes", "see_host")
GROUPS = (LIMITS_AND_CALLS, FILES, SIGHT)  # a successful attack of group n limits the sandbox to level n
NOT_ISOLATED = "the kernel, the machine's clock, load and memory size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The isolation of the sandbox: its level, the layers that were set, and the attacks that succeeded."""

    level: int
    layers: tuple[str, ...]
    succeeded: tuple[str, ...]

    def line(self) -> str:
        through = f"; NOT STOPPED: {', '.join(self.succeeded)}" if self.succeeded else ""
        return f"sandbox level {self.level} of 3 ({', '.join(self.layers)}); not isolated: {NOT_ISOLATED}{through}"


def probe(zygote: Zygote) -> Isolation:
    succeeded = []
    with SealedProcess(zygote, LIMITS) as process:
        loaded = process.load(f"EXECUTABLE, HOST = {sys.executable!r}, {platform.node()!r}\n{ATTACKS}")
        if loaded.kind is not ReplyKind.VALUE:
            raise SandboxError("the sandbox could not run its own probe")
        for attack in (*LIMITS_AND_CALLS, *FILES, *SIGHT):
            reply = process.call(attack, [])
            if reply.kind not in (ReplyKind.VALUE, ReplyKind.RAISED, ReplyKind.MEMORY):
                raise SandboxError(f"the sandbox's probe {attack!r} ended by {reply.kind.value} {reply.detail}")
            if reply.kind is ReplyKind.VALUE and reply.value:
                succeeded.append(attack)
    level = next((level for level, attacks in enumerate(GROUPS) if set(succeeded) & set(attacks)), len(GROUPS))
    return Isolation(level=level, layers=zygote.layers, succeeded=tuple(succeeded))

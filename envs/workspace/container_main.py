"""Process 1 of a container: it runs one process at a time for the caller. Standard library only.

Its standard input carries frames for that process (`temper.envs.sandbox.runner`), and its standard output the answers. An
empty frame with a marker ends all other processes and starts the next one. The marker returns before the first answer of the
next one, so the caller knows whose answer it reads. The model's processes can neither kill nor trace process 1. The container
ends with its input. With the argument `CLEARS` each process finds an empty disk.
"""

import os
import select
import shutil
import signal
import socket
import struct
import sys
from contextlib import suppress

from temper.envs.sandbox import runner, seal

DISK = "/tmp"
FOLDER = f"{DISK}/workspace"
CLEARS = "clears"
MARKER_BYTES = 16
SEND_S = 10.0


def main() -> None:
    if os.getpid() != 1:  # outside a container it would kill all processes of its user
        raise RuntimeError("this is not process 1 of a container")
    if shutil.which("sh") is None:
        raise RuntimeError("the image has no sh")
    seal.no_new_privileges()
    seal.refuse_user_namespaces()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which process 1 ignores, unlike Python's handler
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:  # may hold a password
        del os.environ[name]
    marker = (runner.read_exactly(0, 4 + MARKER_BYTES) or b"")[4:]
    while marker:
        end_others()
        if CLEARS in sys.argv:
            clear()
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            serve(theirs.fileno())
        theirs.close()
        send(marker)
        with ours:
            marker = relay(ours)


def end_others() -> None:
    """Kill and reap all other processes of the container. They can't fork meanwhile."""
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.wait()


def clear() -> None:
    """Remove what earlier processes left."""
    for entry in os.scandir(DISK):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)


def serve(channel: int) -> None:
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        if os.path.islink(FOLDER) or os.path.isfile(FOLDER):
            os.unlink(FOLDER)
        os.makedirs(FOLDER, exist_ok=True)
        os.chdir(FOLDER)
        runner.run(channel)
    finally:
        os._exit(0)


def relay(channel: socket.socket) -> bytes:
    """Pass frames and answers on until an empty frame. Return its marker, empty at the end of the input."""
    channel.settimeout(SEND_S)  # a process may not read
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(0, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready == 0:
                head = runner.read_exactly(0, 4) or bytes(4)
                (length,) = struct.unpack(">I", head)
                body = runner.read_exactly(0, length or MARKER_BYTES) or b""
                if not length:
                    return body
                with suppress(OSError):
                    channel.sendall(head + body)
            elif not (data := receive(channel)):
                poll.unregister(channel)
                runner.write(1, {"crash": "the process ended"})
            else:
                send(data)


def receive(channel: socket.socket) -> bytes:
    with suppress(OSError):
        return channel.recv(2**16)
    return b""


def send(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]

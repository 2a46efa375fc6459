"""The zygote: a child program that starts once, seals itself, and forks one sealed process per execution.

Run it as `python -s -S -P zygote_main.py LEVEL [FOLDER OF NUMPY]` with a minimal environment and the control socket as
standard input. It has one thread, because a fork copies no other. The control socket takes
`{"spawn": {"cpu_s", "memory_bytes", "threads"}}` with descriptors (the program's channel, its input and output),
`{"reap": pid}` and `{"end": pid}`. The first two are answered.
It ends when the control socket closes or its parent is gone (polled: PDEATHSIG would fire when the *thread* that started it
ends).

`temper.envs.sandbox.runner` defines the messages of a fork.
"""

import builtins
import gc
import importlib
import json
import os
import random
import resource
import select
import selectors
import signal
import socket
import struct
import sys
import types
from typing import Any

temper = sys.modules["temper"] = types.ModuleType(
    "temper"
)  # this file runs by its path in a process without an import path
temper.__path__ = [os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))]
# programs load `bridge`; importing it here saves every fork the work
from temper.envs.sandbox import bridge, namespaces, runner, seal, thread_limit  # noqa: E402, F401

# the most used modules; the rest of the standard library stays readable. Each page here makes a fork slower
# fmt: off
MODULES = (
    "bisect", "collections.abc", "copy", "datetime", "decimal", "fractions", "functools", "hashlib", "heapq",
    "itertools", "math", "operator", "random", "re", "statistics", "string", "time", "typing",
    "binascii", "bz2", "lzma", "zlib",  # these need system libraries, which are unreadable later
)
# fmt: on
NUMPY_FOLDERS = ("numpy", "numpy.libs")
CHANNEL = 3
POLL_MS = 2000
REHEARSALS = 16
SOCKET_PAIR = socket.socketpair  # programs get a replacement


def main() -> None:
    level, *site = int(sys.argv[1]), *sys.argv[2:]
    control = socket.socket(fileno=os.dup(0))
    os.dup2(1, 0)
    folders = warm_up(site)
    try:
        layers, forks = seal_this(level, folders)
    except OSError as error:
        control.send(json.dumps({"error": str(error)}).encode())
        return
    prepare()
    control.send(json.dumps({"ready": layers, "pid": forks.zygote}).encode())
    parent = os.getppid()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    limit = thread_limit.ThreadLimit(poll)
    while True:
        readable = poll.poll(POLL_MS)
        if os.getppid() != parent:
            return
        for descriptor, events in readable:
            if descriptor != control.fileno():
                limit.serve(descriptor, events)
                continue
            message, descriptors, _, _ = socket.recv_fds(control, 4096, 3)
            if not message:
                return
            answer = serve(json.loads(message), descriptors, control, forks, limit)
            if answer is not None:
                control.send(json.dumps(answer).encode())


def warm_up(site: list[str]) -> list[str]:
    """Import the modules that programs use most, and numpy if its folder is given. Return the folders that programs may
    read.
    """
    folders = seal.library_folders()
    for name in MODULES:
        importlib.import_module(name)
    for folder in site:
        sys.path.append(folder)
        try:
            importlib.import_module("numpy")
        except ImportError as error:
            print(f"sandbox: no numpy: {error}", file=sys.stderr)
        sys.path.remove(folder)
        folders += [path for name in NUMPY_FOLDERS if os.path.isdir(path := os.path.join(folder, name))]
    return folders


def seal_this(level: int, folders: list[str]) -> tuple[list[str], "Forks"]:
    """Seal the zygote. Return the names of the layers that hold, and the state for every fork.

    At level 3 raise OSError if a namespace can't be made. At level 2 a layer that can't be set is skipped with a message.
    """
    proc, layers, reachable = os.open("/proc", os.O_PATH), [], True
    with open("/proc/self/statm") as file:
        forks = Forks(base_bytes=int(file.read().split()[0]) * resource.getpagesize())
    if level >= 3:
        namespaces.enter_private_root(folders)
    elif os.geteuid() == 0:
        reachable = seal.try_layer("library for another uid", lambda: namespaces.uncover(folders))
    if os.geteuid() == 0 and reachable and seal.try_layer("other uid", seal.drop_uid):
        layers.append("uid")
    if level >= 3:
        forks.process_ids = namespaces.enter_namespaces(proc)
        layers.append("namespaces")
    forks.zygote = int(os.readlink("self", dir_fd=proc))
    os.close(proc)
    keep = namespaces.CAP_SYS_ADMIN if level >= 3 else 0
    layers += seal.seal_zygote(folders, keep=keep, files=seal.ZYGOTE_FILES)
    try:
        forks.seccomp = seal.seccomp_filter()
        if seal.try_layer("threads", thread_limit.try_listener):
            forks.threads = seal.seccomp_filter(threads=True)
            layers.append("threads")
        layers.append("seccomp")
    except OSError as error:
        print(f"sandbox: no seccomp: {error}", file=sys.stderr)
    return layers, forks


class Forks:
    """The state that every fork gets."""

    def __init__(self, *, base_bytes: int) -> None:
        self.base_bytes = base_bytes  # address space of the interpreter and the imported libraries
        self.zygote = 0  # process id of the zygote for its parent
        self.seccomp: Any = None  # system-call filter
        self.threads: Any = None  # filter of a program with threads; None if they can't be counted
        self.process_ids: int | None = None  # descriptor of the zygote's process-id namespace


def prepare() -> None:
    """Do once the work that every fork would repeat: streams, seed, and a rehearsal that warms its code (3 ms)."""
    os.dup2(0, 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.__stdin__, sys.__stdout__ = sys.stdin, sys.stdout  # type: ignore[misc]
    random.seed(0)
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # there is no `site`
    socket.socketpair = runner.make_pipe_pair  # type: ignore[assignment]
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc, assignment]
    left, right = SOCKET_PAIR()
    for request in (
        {"source": "def f(x):\n    return [x + 1 for _ in range(2)]", "call": "f", "arguments": [1]},
        {"call": "f", "arguments": []},
    ) * REHEARSALS:
        body = json.dumps(request).encode()
        left.send(struct.pack(">I", len(body)) + body)
    left.shutdown(socket.SHUT_WR)
    runner.run(right.fileno())
    left.close()
    right.close()
    gc.collect()
    gc.freeze()
    gc.disable()


def serve(
    request: dict[str, Any],
    descriptors: list[int],
    control: socket.socket,
    forks: Forks,
    limit: thread_limit.ThreadLimit,
) -> dict[str, Any] | None:
    if "end" in request:
        os.kill(request["end"], signal.SIGKILL)
        reap(request["end"], 0)
        return None
    if "reap" in request:
        return reap(request["reap"], os.WNOHANG)
    try:
        if forks.process_ids is not None:
            namespaces.own_process_ids(forks.process_ids)
        threads = request["spawn"]["threads"] and forks.threads is not None
        ours, theirs = SOCKET_PAIR() if threads else (None, None)
        pid = os.fork()
        if pid == 0:
            try:
                enter(descriptors, control, request["spawn"], forks, theirs)
                runner.run(CHANNEL)
            finally:
                os._exit(0)
        if ours is not None and theirs is not None:
            theirs.close()
            limit.expect(ours, pid)
        return {"pid": pid}
    except OSError as error:
        return {"error": f"fork: {error}"}
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def reap(pid: int, options: int) -> dict[str, Any]:
    ended, status, usage = os.wait4(pid, options)
    return {"status": status if ended else None, "cpu_s": usage.ru_utime + usage.ru_stime}


def enter(
    descriptors: list[int], control: socket.socket, limits: dict[str, int], forks: Forks, zygote: socket.socket | None
) -> None:
    """Seal the fork: a new session, nothing open but its channel, its input and output or /dev/null."""
    os.setsid()
    if zygote is not None:
        thread_limit.hand_over(zygote)
    control.close()
    for number, descriptor in zip((CHANNEL, 0, 1), descriptors, strict=False):
        os.dup2(descriptor, number)
    os.closerange(CHANNEL + 1, seal.ZYGOTE_FILES)
    gc.enable()
    memory_bytes = forks.base_bytes + limits["memory_bytes"]
    seccomp = forks.seccomp if zygote is None else forks.threads
    seal.seal_child(cpu_s=limits["cpu_s"], memory_bytes=memory_bytes, seccomp=seccomp)
    runner.write(CHANNEL, {"sealed": forks.seccomp is not None})


if __name__ == "__main__":
    main()

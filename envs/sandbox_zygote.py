"""The zygote: a child program that is started once, seals itself, and forks one sealed process per execution.

Run as `python -I -S sandbox_zygote.py` with an empty environment and the control socket as standard input. It has one
thread. Over the control socket it takes `{"spawn": {"cpu_s", "memory_bytes"}}` with the program's channel as a
descriptor, `{"kill": pid}` and `{"end": pid}`; it answers the first two. It ends when the control socket closes or its
parent is gone (polled: PDEATHSIG would fire when the *thread* that started it ends).

A forked process speaks over its channel in frames (4 bytes of length, then JSON, `envs.literals`): it takes
`{"source"}`, `{"call": [name, arguments]}` and `{"check": [name, entry point]}` and answers by `{"value"}`,
`{"raised"}`, `{"unfit"}` or `{"output"}`. During a check it asks for the candidate's results by `{"ask": arguments}`.
"""

import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import struct
import sys
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)
from envs import literals, sandbox_seal  # noqa: E402

sys.path.remove(ROOT)

# what programs import most; the rest of the standard library can be read. Each page held here makes a fork slower
# fmt: off
MODULES = (
    "bisect", "collections.abc", "copy", "datetime", "decimal", "fractions", "functools", "hashlib", "heapq",
    "itertools", "math", "operator", "random", "re", "statistics", "string", "time", "typing",
)
# fmt: on
MAX_REQUEST_BYTES = 8 * 2**20
MAX_REPLY_BYTES = 64 * 2**10
MAX_MESSAGE_CHARACTERS = 200
CHANNEL = 3
POLL_MS = 2000


def main() -> None:
    """Serves until the parent is gone."""
    control, parent = socket.socket(fileno=os.dup(0)), os.getppid()
    os.dup2(1, 0)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    for name in MODULES:
        importlib.import_module(name)
    layers = sandbox_seal.seal_zygote()
    try:
        program = sandbox_seal.seccomp_program()
    except OSError as error:
        print(f"sandbox: no seccomp: {error}", file=sys.stderr)
        program = None
    prepare()
    control.send(json.dumps({"ready": layers + ["seccomp"] * (program is not None)}).encode())
    while True:
        readable = poll.poll(POLL_MS)
        if os.getppid() != parent:
            return
        if readable:
            message, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
            if not message:
                return
            answer = serve(json.loads(message), descriptors, control, program)
            if answer is not None:
                control.send(json.dumps(answer).encode())


def prepare() -> None:
    """Does once what every fork would have to do: streams, seed, and a first compilation (3 ms)."""
    os.dup2(0, 2)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    random.seed(0)
    left, right = socket.socketpair()
    for request in (
        {"source": "def f(x):\n    return [x + 1 for _ in range(2)]"},
        {"call": ["f", [1]]},
        {"call": ["f", []]},
    ):
        body = json.dumps(request).encode()
        left.send(struct.pack(">I", len(body)) + body)
    left.shutdown(socket.SHUT_WR)
    run(right.fileno())
    left.close()
    right.close()
    gc.collect()
    gc.freeze()
    gc.disable()


def serve(
    request: dict[str, Any], descriptors: list[int], control: socket.socket, program: Any
) -> dict[str, Any] | None:
    """Answers one request of the parent; None where it wants no answer."""
    if "end" in request:
        kill(request["end"])
        return None
    if "kill" in request:
        return kill(request["kill"])
    (channel,) = descriptors
    try:
        pid = os.fork()
    except OSError as error:
        os.close(channel)
        return {"error": f"fork: {error}"}
    if pid == 0:
        try:
            enter(channel, control, request["spawn"], program)
            run(CHANNEL)
        finally:
            os._exit(0)
    os.close(channel)
    return {"pid": pid}


def kill(pid: int) -> dict[str, Any]:
    """Kills and reaps a forked process; its wait status and what it used."""
    os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return {"status": status, "cpu_s": usage.ru_utime + usage.ru_stime, "memory_kb": usage.ru_maxrss}


def enter(channel: int, control: socket.socket, limits: dict[str, int], program: Any) -> None:
    """Seals the fork: its own session, nothing open but its channel and /dev/null."""
    os.setsid()
    control.close()
    os.dup2(channel, CHANNEL)
    os.closerange(CHANNEL + 1, 64)
    gc.enable()
    sandbox_seal.seal_child(cpu_s=limits["cpu_s"], memory_bytes=limits["memory_bytes"], program=program)
    write(CHANNEL, {"sealed": program is not None})


def run(channel: int) -> None:
    """Loads a program and answers calls until the channel closes."""
    namespace: dict[str, Any] = {"__name__": "solution", "__builtins__": __builtins__}
    while (request := read(channel)) is not None:
        try:
            if "source" in request:
                exec(compile(request["source"], "<program>", "exec"), namespace)
                value = None
            elif "call" in request:
                name, arguments = request["call"]
                value = namespace[name](*arguments)
            else:
                name, entry_point = request["check"]
                namespace[entry_point] = lambda *arguments: ask(channel, arguments)
                value = namespace[name](namespace[entry_point])
            reply = {"value": literals.encode(value)}
        except literals.NotPlain as error:
            reply = {"unfit": str(error)[:MAX_MESSAGE_CHARACTERS]}
        except BaseException as error:
            reply = {"raised": f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARACTERS]}
        write(channel, reply)


def ask(channel: int, arguments: tuple[Any, ...]) -> Any:
    """The candidate's result for these arguments, from the other sandbox."""
    write(channel, {"ask": literals.encode(list(arguments))})
    reply = read(channel)
    if reply is None or "value" not in reply:
        raise RuntimeError("the candidate gave no result")
    return reply["value"]


def read(channel: int) -> dict[str, Any] | None:
    """The next frame, its literals decoded; None at the end."""
    head = read_exactly(channel, 4)
    if head is None:
        return None
    body = read_exactly(channel, min(struct.unpack(">I", head)[0], MAX_REQUEST_BYTES))
    return None if body is None else {name: literals.decode(form) for name, form in json.loads(body).items()}


def read_exactly(channel: int, count: int) -> bytes | None:
    """`count` bytes, or None where the channel ends before."""
    parts = []
    while count:
        part = os.read(channel, min(count, 2**16))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def write(channel: int, reply: dict[str, Any]) -> None:
    """Sends one frame; a reply over the size limit becomes an `output`."""
    try:
        body = json.dumps(reply, separators=(",", ":")).encode()
    except (ValueError, RecursionError) as error:
        body = json.dumps({"unfit": str(error)[:MAX_MESSAGE_CHARACTERS]}).encode()
    if len(body) > MAX_REPLY_BYTES:
        body = json.dumps({"output": f"result longer than {MAX_REPLY_BYTES} bytes"}).encode()
    view = memoryview(struct.pack(">I", len(body)) + body)
    while view:
        view = view[os.write(channel, view) :]


if __name__ == "__main__":
    main()

"""The code inside a sandboxed process: it loads and calls a program, and judges nothing.

Its channel carries frames (4 bytes of length, then JSON, `temper.envs.sandbox.literals`):

    {"source"}                      loads a program
    {"call": name, "arguments"}     calls a function of it, may come together with the source
    {"converse": name}              calls a function of it with `ask`, which sends a request to the caller
    {"main": source}                runs a whole program as `__main__`

The answer is `{"value"}`, `{"raised"}`, `{"unfit"}` or `{"output"}`. In a conversation it sends `{"ask": arguments}` and
receives `{"value"}`. A program can send frames itself: they count as its answers.
"""

import atexit
import fcntl
import json
import os
import struct
import sys
import types
from typing import Any

from temper.envs.sandbox import literals

PROGRAM = "<program>"
ENCODER = json.JSONEncoder(separators=(",", ":"))  # made once, instead of in each fork
MAX_REQUEST_BYTES = 8 * 2**20
MAX_REPLY_BYTES = 2**20
MAX_MESSAGE_CHARACTERS = 200


def run(channel: int) -> None:
    module = types.ModuleType("solution")
    while (request := read(channel)) is not None:
        try:
            reply = {"value": literals.encode(serve_program(channel, request, module))}
        except literals.NotPlain as error:
            reply = {"unfit": str(error)[:MAX_MESSAGE_CHARACTERS]}
        except BaseException as error:
            reply = {"raised": f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARACTERS] + describe_place(error)}
        write(channel, reply)


def serve_program(channel: int, request: dict[str, Any], module: types.ModuleType) -> Any:
    if "main" in request:
        return run_main(request["main"])
    namespace, value = module.__dict__, None
    if "source" in request:
        sys.modules[module.__name__] = module
        load(request["source"], namespace)
    if "call" in request:
        value = namespace[request["call"]](*request["arguments"])
    if "converse" in request:
        value = namespace[request["converse"]](lambda *arguments: ask(channel, arguments))
    return value


def load(source: str, namespace: dict[str, Any]) -> None:
    """Execute a source whose definitions are called later. A source that exits without an error counts as loaded."""
    try:
        exec(compile(source, PROGRAM, "exec", dont_inherit=True), namespace)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def run_main(source: str) -> None:
    """Run a whole program as the interpreter would. An exception propagates after its output is sent."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(source, PROGRAM, "exec", dont_inherit=True), module.__dict__)
    except SystemExit:
        pass
    finally:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()  # waits for the threads that are not daemons
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.__stdout__):
            if stream is not None:
                stream.flush()


class PipeEnd:
    """One end of a pair that replaces sockets, which a program may not open. asyncio wakes its loop by them."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader, self.writer = reader, writer

    def fileno(self) -> int:
        return self.reader

    def setblocking(self, blocks: bool) -> None:
        for number in (self.reader, self.writer):
            flags = fcntl.fcntl(number, fcntl.F_GETFL)
            fcntl.fcntl(number, fcntl.F_SETFL, flags & ~os.O_NONBLOCK if blocks else flags | os.O_NONBLOCK)

    def recv(self, count: int) -> bytes:
        return os.read(self.reader, count)

    def send(self, data: bytes) -> int:
        return os.write(self.writer, data)

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


def make_pipe_pair() -> tuple[PipeEnd, PipeEnd]:
    (reader, to_reader), (other, to_other) = os.pipe(), os.pipe()
    return PipeEnd(reader, to_other), PipeEnd(other, to_reader)


def describe_place(error: BaseException) -> str:
    trace, line = error.__traceback__, None
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == PROGRAM else line
        trace = trace.tb_next
    return "" if line is None else f" (line {line})"


def ask(channel: int, arguments: tuple[Any, ...]) -> Any:
    """Return the caller's answer to these arguments."""
    write(channel, {"ask": literals.encode(list(arguments))}, limit=MAX_REQUEST_BYTES)
    reply = read(channel)
    if reply is None or "value" not in reply:
        raise RuntimeError("there was no answer")
    return reply["value"]


def read(channel: int) -> dict[str, Any] | None:
    head = read_exactly(channel, 4)
    if head is None:
        return None
    body = read_exactly(channel, min(struct.unpack(">I", head)[0], MAX_REQUEST_BYTES))
    return None if body is None else {name: literals.decode(form) for name, form in json.loads(body).items()}


def read_exactly(channel: int, count: int) -> bytes | None:
    parts = []
    while count:
        part = os.read(channel, min(count, 2**16))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def write(channel: int, reply: dict[str, Any], limit: int = MAX_REPLY_BYTES) -> None:
    """Send one frame. A reply over the size limit becomes an `output`."""
    try:
        body = ENCODER.encode(reply).encode()
    except (ValueError, RecursionError) as error:
        body = json.dumps({"unfit": str(error)[:MAX_MESSAGE_CHARACTERS]}).encode()
    if len(body) > limit:
        body = json.dumps({"output": f"result longer than {limit} bytes"}).encode()
    view = memoryview(struct.pack(">I", len(body)) + body)
    while view:
        view = view[os.write(channel, view) :]

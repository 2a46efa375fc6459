"""A whole program with a text on its standard input, in a sandboxed process."""

import fcntl
import os
import select
import time

from temper.envs.sandbox.runner import MAX_REPLY_BYTES
from temper.envs.sandbox.sealed_process import Limits, Reply, ReplyKind, SealedProcess, frame, to_unicode
from temper.envs.sandbox.zygote_client import Zygote

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class StdinProcess(SealedProcess):
    """One sandboxed process that runs a program as `__main__`. Its output is read up to 1 MiB, or to `most` bytes."""

    def __init__(self, zygote: Zygote, limits: Limits, *, stdin: str, most: int = 0, threads: bool = False) -> None:
        self.written: list[bytes] = []
        self.most = max(most, MAX_REPLY_BYTES)
        given = _sealed_file(stdin)
        self.output, theirs = os.pipe()
        try:
            super().__init__(zygote, limits, streams=(given, theirs), threads=threads)
        except BaseException:
            os.close(self.output)
            raise
        finally:
            os.close(given)
            os.close(theirs)

    def run(self, source: str) -> Reply:
        """Run the program. Return `VALUE` with the standard output if it finished, also by SystemExit or with exit code 0."""
        reply = self._request(frame({"main": to_unicode(source)}))
        if reply.kind is not ReplyKind.VALUE and self.exit_code != 0:
            return reply
        return Reply(kind=ReplyKind.VALUE, value=b"".join(self.written).decode(errors="replace"))

    def _read(self) -> bytes:
        if self.sealed:
            self._gather()
        return super()._read()

    def _gather(self) -> None:
        """Read the output until the channel has data and the output has none."""
        length, poll = 0, select.poll()
        poll.register(self.channel, select.POLLIN)
        poll.register(self.output, select.POLLIN)
        while True:
            readable = dict(poll.poll(max(self.deadline - time.monotonic(), 0) * 1000))
            if not readable:
                self._extend()
                continue
            if self.output not in readable:
                return
            part = os.read(self.output, MAX_REPLY_BYTES)
            self.written.append(part)
            length += len(part)
            if length > self.most:
                raise ValueError(f"more than {self.most} bytes of output")
            if not part:
                poll.unregister(self.output)

    def close(self) -> None:
        super().close()
        if self.output >= 0:
            os.close(self.output)
            self.output = -1


def _sealed_file(text: str) -> int:
    descriptor = os.memfd_create("stdin", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(text.encode(errors="replace"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor

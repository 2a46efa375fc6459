"""A limit on the threads of each program, enforced by the zygote.

The filter of `envs.sandbox.seal` allows threads but no processes, and a filter can't count. A second filter reports each
`clone` to a listener (seccomp_unotify(2), Linux 5.5), which the fork hands to the zygote before any foreign code runs. The
zygote lets the thread start, or kills a program with too many. Standard library only.
"""

import ctypes
import fcntl
import os
import select
import signal
import socket
import struct

from temper.envs.sandbox import seal

MOST_THREADS = 256
"""Threads that a program may start in its life, without the main one."""
SECCOMP = {"x86_64": 317, "aarch64": 277}
SET_FILTER, NEW_LISTENER = 1, 8
RECEIVE, SEND, CONTINUE = 0xC0502100, 0xC0182101, 1
NOTICE_BYTES = 80


def make_listener() -> int:
    """Make the kernel ask before each `clone` of this process. Return the listener's descriptor. Raise OSError if it
    refuses.
    """
    machine = seal.MACHINE
    code = seal.assemble(
        [
            (seal.LOAD, 0, 0, 0),
            (seal.JUMP_EQUAL, 0, 1, seal.CLONE[machine]),
            (seal.RETURN, 0, 0, seal.NOTIFY),
            (seal.RETURN, 0, 0, seal.ALLOW),
        ]
    )
    program = seal.to_sock_fprog(code)
    number = seal.LIBC.syscall(SECCOMP[machine], SET_FILTER, NEW_LISTENER, ctypes.byref(program))
    return seal.check_call(number, "listener for threads")


def try_listener() -> None:
    """Make a listener in a fork. Raise `OSError` if that fails."""
    pid = os.fork()
    if pid == 0:
        try:
            make_listener()
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError("the kernel gives no listener")


def hand_over(channel: socket.socket) -> None:
    socket.send_fds(channel, [b"listener"], [make_listener()])


class ThreadLimit:
    """The zygote's side: the listeners of its forks, in its poll loop."""

    def __init__(self, poll: select.poll) -> None:
        self.poll = poll
        self.channels: dict[int, tuple[socket.socket, int]] = {}  # the channels that will send a fork's listener
        self.started: dict[int, tuple[int, int]] = {}  # by listener: the fork and its number of started threads

    def expect(self, channel: socket.socket, pid: int) -> None:
        self.channels[channel.fileno()] = channel, pid
        self.poll.register(channel, select.POLLIN)

    def serve(self, descriptor: int, events: int) -> None:
        if descriptor in self.channels:
            self.poll.unregister(descriptor)
            channel, pid = self.channels.pop(descriptor)
            with channel:
                _, found, _, _ = socket.recv_fds(channel, 16, 1)
            for number in found:
                self.started[number] = pid, 0
                self.poll.register(number, select.POLLIN)
        elif events & select.POLLIN:
            self._answer(descriptor)
        else:  # the program has ended
            self.poll.unregister(descriptor)
            os.close(descriptor)
            del self.started[descriptor]

    def _answer(self, descriptor: int) -> None:
        pid, before = self.started[descriptor]
        self.started[descriptor] = pid, before + 1
        notice = bytearray(NOTICE_BYTES)
        try:
            fcntl.ioctl(descriptor, RECEIVE, notice)
            if before >= MOST_THREADS:
                os.kill(pid, signal.SIGKILL)
            else:
                fcntl.ioctl(descriptor, SEND, struct.pack("QqiI", struct.unpack_from("Q", notice)[0], 0, 0, CONTINUE))
        except OSError:  # it was killed in the meantime
            return

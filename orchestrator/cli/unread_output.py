"""What becomes of a command when nobody reads on: `temper ... | head` ends quietly, as other commands of a shell do."""

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager

UNREAD = 141
"""Exit status of a command whose output was not read to its end: a shell's number for a process that SIGPIPE ended."""


def is_unread() -> bool:
    """Return whether standard output is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(1, 0)  # an error is told without being asked for
    return any(event & select.POLLERR for _, event in poll.poll(0))


@contextmanager
def ends_unread() -> Iterator[None]:
    """End the command with the status `UNREAD` where it writes, or has yet to write, what nobody reads.

    A `BrokenPipeError` of anything but standard output is raised as it is.
    """
    try:
        try:
            yield
        finally:
            print(end="", flush=True)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # rich's, which has left standard output already
            raise
        raise SystemExit(UNREAD) from None
    except BrokenPipeError:
        if not is_unread():
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)  # what lies in buffers goes there when Python ends
        os.dup2(nowhere, 1)
        raise SystemExit(UNREAD) from None

"""The end of a comparison whose time is over, whatever it is doing: what is waited for inside a library knows no deadline."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import psutil

SOON_S = 1e-3
"""The least that a timer is set to: 0 would stop it."""
AGAIN_S = 10.0
"""Seconds after which it is said again, where a finaliser of a library took the first for an error of its own."""
TRACKER = "resource_tracker"
"""What the process of `multiprocessing` has in its command that removes shared memory nobody holds, and then ends."""


class OutOfTime(SystemExit):
    """The time is over. Unlike an `Exception` it is no finding of whoever looks for errors, and it ends an event loop."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` in the midst of a block that takes longer, and end the processes that it started.

    For the main thread alone, as signals are; they interrupt waits and sleeps, and computing between two operations.
    """
    before = _children()

    def over(_number: int, _frame: FrameType | None) -> None:
        _end(_children() - before)
        raise OutOfTime(f"more than {seconds:g} s")

    handler, began = signal.signal(signal.SIGALRM, over), time.monotonic()
    others_s, again_s = signal.setitimer(signal.ITIMER_REAL, max(seconds, SOON_S), AGAIN_S)
    try:
        yield
    except OutOfTime:
        _end(_children() - before)  # one that was about to start
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if others_s:  # a timer that was set before goes on
            signal.setitimer(signal.ITIMER_REAL, max(others_s - (time.monotonic() - began), SOON_S), again_s)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _end(processes: set[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if not any(TRACKER in word for word in process.cmdline()):
                process.kill()

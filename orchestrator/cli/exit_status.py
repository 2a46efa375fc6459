"""The end of a command: an exit status, and a line on the error in place of a traceback.

`temper ... | head` ends quietly, as other commands of a shell do.
"""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console

from temper.orchestrator.loop.deadline import STOPPED, StuckError
from temper.orchestrator.run.checkpoint import DamagedCheckpointError
from temper.orchestrator.run.redaction import blank_text
from temper.orchestrator.run.screen import print_text
from temper.rollout.pool.restarts import TooManyRestarts

FAULT = 1
"""Exit status of an error of the machine, a library or the disk."""
MISTAKE = 2
GAVE_UP = 3
"""Exit status of a run with too many hangs or failures."""
UNREAD = 141
"""Exit status of a command whose output was not read to its end: a shell's number for a process that SIGPIPE ended."""

INTERRUPTED = "interrupted: stopped at once; rerun the command to resume a run"


def exit_status(work: Callable[[], int]) -> int:
    """Return the exit status of a command, and print an error or interrupt.

    `ends_unread` handles unread output. Any other exception is a bug of Temper.
    """
    try:
        with sigterm_as_sigint():
            return work()
    except KeyboardInterrupt:  # the second one of a run: the first one requests a stop
        print(INTERRUPTED, file=sys.stderr)
        return STOPPED
    except (ValueError, FileNotFoundError) as error:
        print_text(Console(stderr=True), f"error: {blank_text(str(error))}")
        return MISTAKE
    except (StuckError, TooManyRestarts) as error:
        _print_fault(error)
        return GAVE_UP
    except BrokenPipeError as error:
        if is_unread():
            raise
        _print_fault(error)
    except (DamagedCheckpointError, OSError, RuntimeError) as error:
        _print_fault(error)
    return FAULT


@contextmanager
def sigterm_as_sigint() -> Iterator[None]:
    """Let SIGTERM do the work of SIGINT, which asyncio knows, and accept both in a shell's background job.

    During an import it ends the process at once, because libraries turn an exception there into other errors, or abort.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _is_import(frame):
            sys.stdout.flush()
            print(INTERRUPTED, file=sys.stderr, flush=True)
            os._exit(STOPPED)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def _is_import(frame: FrameType | None) -> bool:
    """Return whether a frame, or one that called it, imports a module."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _print_fault(error: Exception) -> None:
    print_text(Console(stderr=True), f"fault: {type(error).__name__}: {blank_text(str(error))}")


def is_unread() -> bool:
    poll = select.poll()
    poll.register(1, 0)  # errors are always reported
    return any(event & select.POLLERR for _, event in poll.poll(0))


@contextmanager
def ends_unread() -> Iterator[None]:
    """End the command with `UNREAD` if nobody reads its output. Raise a `BrokenPipeError` of anything but standard output."""
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
        nowhere = os.open(os.devnull, os.O_WRONLY)  # buffered output is discarded when Python ends
        os.dup2(nowhere, 1)
        raise SystemExit(UNREAD) from None

"""The driver's process: the output of libraries goes into a file, imports out of garbage collection, the heaps are few.

Measured with 64 engines' traffic: the 800,000 objects of imported modules made each full collection 0.46 s, a seventh of all
that the driver computes. The threads in which tasks, batches and files are made, each a new one, took ever other heaps of
glibc's malloc, up to eight a core, of which each keeps the size of its largest batch: 25 MB more a step; with two it is flat
from the fourth step on."""

import ctypes
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from temper.learner.gc_freeze import freeze_gc

OURS = "temper"
VLLM_LEVEL = "VLLM_LOGGING_LEVEL"
"""The variable of the environment that says what vLLM logs."""


@contextmanager
def noise_to(path: Path) -> Iterator[TextIO]:
    """Append the standard output and error of this process and its children to a file; yield the screen itself.

    It works by file descriptors, so that it holds for libraries of any language.
    """
    path.parent.mkdir(exist_ok=True)
    _flush()
    kept = os.dup(1), os.dup(2)
    screen = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8", errors="replace")
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        yield screen
    finally:
        with suppress(OSError):  # where the file's disk is full, what is left goes to the screen
            _flush()
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        screen.close()


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


@contextmanager
def warnings_to(notify: Callable[[str], None]) -> Iterator[None]:
    """Say what our own modules warn of by `logging`, instead of printing it."""
    handler = _NoteHandler(notify)
    logging.getLogger(OURS).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(OURS).removeHandler(handler)


class _NoteHandler(logging.Handler):
    def __init__(self, notify: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._notify = notify

    def emit(self, record: logging.LogRecord) -> None:
        self._notify(record.getMessage())


M_ARENA_MAX = -8
HEAPS = 2


def keep_driver_small() -> None:
    """Take what lives now out of later collections, and bound glibc's heaps; once, before threads are started."""
    gc.collect()
    freeze_gc()
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(M_ARENA_MAX, HEAPS)

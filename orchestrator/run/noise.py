"""What libraries print while a run works, Ray, vLLM and others, goes into a file; the screen is for the run itself."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

OURS = "temper"
"""The package whose warnings are for people."""
VLLM_LEVEL = "VLLM_LOGGING_LEVEL"
"""The variable of the environment that says what vLLM logs."""


@contextmanager
def noise_to(path: Path) -> Iterator[TextIO]:
    """Append to a file what this process and its children write to standard output and error; give the screen itself.

    It goes by file descriptors, so that it holds for libraries of whatever language.
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
def warnings_to(say: Callable[[str], None]) -> Iterator[None]:
    """Say what our own modules warn of by `logging`, instead of printing it."""
    handler = _Saying(say)
    logging.getLogger(OURS).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(OURS).removeHandler(handler)


class _Saying(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        self._say(record.getMessage())

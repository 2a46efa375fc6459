"""Memory that a process has freed and its allocator still keeps, given back to the system.

On a CPU torch computes in memory of glibc's malloc, in tensors of ever other sizes. Between them oneDNN leaves what it
compiled for each shape (up to 1,024 pieces), so that the ends of the heaps, all that malloc gives back by itself, stay taken.

Measured over the first 46 steps of the demo's `rl`, as mallinfo2 tells it: a rank uses 225 to 235 MB all the time, and what it
has freed grows from 170 to 417 MB; an engine uses 510 to 516 MB, and has freed 129 to 348 MB. Settings of malloc (a fixed
threshold of 1 MB for mmap, two arenas) left that growth as it was. Giving 380 MB back takes 13 ms,
and to take 250 MB anew costs 0.1 s of a core, which is why it is not done more often than every few seconds.
"""

import ctypes
import functools
import time
from collections.abc import Callable

import torch

PAUSE_S = 5.0
"""Least seconds between two times that a process gives memory back: its steps may be shorter."""


class _Next:
    """When this process gives back next."""

    at = 0.0


def give_back(*, pause_s: float = PAUSE_S) -> None:
    """Give the freed pages of all heaps back where this process computes on a CPU, and its C library can do that.

    Nothing happens where it was done less than `pause_s` seconds ago.
    """
    now = time.monotonic()
    if now >= _Next.at and not torch.cuda.is_available() and (trim := _trim()) is not None:
        _Next.at = now + pause_s
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim

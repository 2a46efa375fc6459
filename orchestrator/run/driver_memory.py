"""How the driver's process keeps its memory: what it has imported is not looked through for garbage, and its heaps are few.

Measured at the traffic of 64 engines: the 800,000 objects of imported modules made each full collection 0.46 s, a seventh
of all that the driver computes. The threads in which tasks, batches and files are made, each a new one, took ever other heaps
of glibc's malloc, up to eight a core, of which each keeps the size of its largest batch: 25 MB more a step; with two it is
flat from the fourth step on.
"""

import ctypes
import gc

from temper.learner.imports_kept import keep_imports

M_ARENA_MAX = -8
"""The number of malloc's parameter in glibc's malloc.h."""
HEAPS = 2


def keep_driver_small() -> None:
    """Take what lives now out of all later collections, and bound the heaps; to be called once, when all is imported.

    The bound is for heaps that are not there yet, so this comes before threads are started. Without glibc there is none.
    """
    gc.collect()
    keep_imports()
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(M_ARENA_MAX, HEAPS)

"""Excludes imported objects from garbage collection: a million objects, a second per collection."""

import atexit
import gc


def freeze_gc() -> None:
    """Move all current objects out of later collections. Call it after the imports."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # else Triton's bindings print frozen objects as leaks

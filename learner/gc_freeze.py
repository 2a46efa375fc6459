"""What a process has imported is not looked through for garbage: a million objects, a second each time."""

import atexit
import gc


def freeze_gc() -> None:
    """Take what lives now out of all later collections; to be called once all is imported."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # or Triton's bindings count what is never collected as leaks, and print that

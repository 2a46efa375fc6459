"""Where a checkpoint is written: an empty folder, with room for it made by what is less precious."""

import errno
from collections.abc import Callable
from pathlib import Path

from temper.orchestrator.run.checkpoint import begin
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.session.recording.batch_room import make_room


def begin_with_room(folder: RunDir, name: str, step: int, *, needed: int, say: Callable[[str], None]) -> Path:
    """Make the folder of the checkpoint of an instance's step (`begin`); recorded batches give room for it, and that is said.

    Raise `OSError` (ENOSPC) where the disk has no room for it even then; they stay.
    """
    place = folder.checkpoints(name)
    try:
        return begin(place, step, needed_bytes=needed)
    except OSError as error:
        if error.errno != errno.ENOSPC or not (removed := make_room(folder, place, needed=needed)):
            raise
    say(
        f"{name} step {step}: the disk had no room for the checkpoint; recorded batches were removed for it "
        f"({', '.join(sorted(path.stem for path in removed))}), whose steps can't be replayed; give the run a larger disk, or "
        f"keep fewer by checkpoints.batches"
    )
    return begin(place, step, needed_bytes=needed)

"""Which batches of an instance are recorded and kept, and which give their room to a checkpoint."""

import re
import shutil
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from temper.orchestrator.run.checkpoint import steps
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.session.recording.batch import StepBatch, write_batch

NAMED = re.compile(r".+-\d+")
"""The name of a batch. Other files in the folder are left alone."""


def make_room(folder: RunDir, place: Path, *, needed: int) -> list[Path]:
    """Remove recorded batches until the disk of `place` has `needed` bytes free; return them.

    The oldest go first; of those after one checkpoint the last steps, since a step is replayed by all before it. None is
    removed if that is not enough, or if they are on another disk.
    """
    lacking = needed - shutil.disk_usage(place).free
    files = {path: path.stat() for path in folder.batches.glob("*.safetensors") if NAMED.fullmatch(path.stem)}
    disk = place.stat().st_dev
    sizes = {path: stat.st_blocks * 512 for path, stat in files.items() if stat.st_dev == disk}
    if lacking <= 0 or sum(sizes.values()) < lacking:
        return []
    removed = []
    for path in _in_turn(folder, {path: files[path].st_mtime for path in sizes}):
        if lacking <= 0:
            break
        path.unlink(missing_ok=True)
        lacking -= sizes[path]
        removed.append(path)
    return removed


def _in_turn(folder: RunDir, written: dict[Path, float]) -> Iterator[Path]:
    """Yield batches, with the times at which they were written, in the order of removal."""
    chains = []
    for stage, own in groupby(sorted(written, key=_named), key=lambda path: _named(path)[0]):
        bases = [0, *steps(folder.checkpoints(stage))]
        by_base = groupby(own, key=lambda path: max(base for base in bases if base < _named(path)[1]))
        chains += [list(chain) for _, chain in by_base]
    for chain in sorted(chains, key=lambda chain: min(written[path] for path in chain)):
        yield from reversed(chain)


def _named(path: Path) -> tuple[str, int]:
    stage, _, step = path.stem.rpartition("-")
    return stage, int(step)


class BatchKeeper:
    """Records the first steps after each checkpoint, and removes those whose checkpoint is gone."""

    def __init__(self, folder: RunDir, stage: str, *, count: int, after: int) -> None:
        """Record `count` steps after each checkpoint. The stage resumes from step `after`, 0 for its beginning."""
        self._folder = folder
        self._stage = stage
        self._count = count
        self._base = after
        self._lacks = False

    def saved(self, step: int) -> None:
        """Note that there will be a checkpoint of this step."""
        self._base, self._lacks = step, False

    def due(self, step: int) -> bool:
        """Return whether to record the batch of a step: without the one before it no later one is of use."""
        return not self._lacks and 0 < step - self._base <= self._count

    def keep(self, batch: StepBatch, *, leave: int = 0) -> None:
        """Write a batch, and remove those that no checkpoint needs. Raise `OSError` if it can't be written or would leave fewer
        than `leave` bytes; then nothing is due before the next checkpoint.
        """
        self._lacks = True
        self.remove_old()
        try:
            write_batch(self._folder.batch_file(self._stage, batch.step), batch, leave=leave)
        finally:
            self.remove_old()
        self._lacks = False

    def remove_old(self) -> None:
        """Remove the batches that no checkpoint needs. One that is being written counts as there."""
        bases = {0, self._base, *steps(self._folder.checkpoints(self._stage))}
        for step, path in self._folder.batch_files(self._stage).items():
            if not any(base < step <= base + self._count for base in bases):
                path.unlink(missing_ok=True)

"""Which batches of an instance are recorded and kept: those by which a step can be trained again from a checkpoint."""

from temper.orchestrator.run.checkpoint import steps
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.session.recording.batch_file import write_batch
from temper.orchestrator.session.recording.step_batch import StepBatch


class BatchKeeper:
    """Records the first steps after each checkpoint, and removes those whose checkpoint is gone."""

    def __init__(self, folder: RunDir, stage: str, *, count: int, after: int) -> None:
        """Record `count` steps after each checkpoint; the stage goes on from that of step `after`, 0 for its beginning."""
        self._folder = folder
        self._stage = stage
        self._count = count
        self._base = after
        self._lacks = False

    def saved(self, step: int) -> None:
        """Learn that there will be a checkpoint of this step."""
        self._base, self._lacks = step, False

    def due(self, step: int) -> bool:
        """Return whether the batch of a step is to be recorded: without one before it no later one is of use."""
        return not self._lacks and 0 < step - self._base <= self._count

    def keep(self, batch: StepBatch, *, leave: int = 0) -> None:
        """Write a batch, and remove before and after those that no checkpoint needs any more. Raise `OSError` where it can't
        be written or would leave fewer than `leave` bytes; nothing is due then before the next checkpoint.
        """
        self._lacks = True
        self.remove_old()
        try:
            write_batch(self._folder.batch_file(self._stage, batch.step), batch, leave=leave)
        finally:
            self.remove_old()
        self._lacks = False

    def remove_old(self) -> None:
        """Remove the batches that no checkpoint needs any more. One that is being written counts as there."""
        bases = {0, self._base, *steps(self._folder.checkpoints(self._stage))}
        for step, path in self._folder.batch_files(self._stage).items():
            if not any(base < step <= base + self._count for base in bases):
                path.unlink(missing_ok=True)

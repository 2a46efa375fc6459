"""The writing of checkpoints while the loop continues, one at a time."""

import asyncio
import errno
import math
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from temper.orchestrator.run.checkpoint import CheckpointConfig, begin
from temper.orchestrator.run.folder import RunDir, evaluations_of
from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.session.recording.keeper import make_room


def begin_with_room(folder: RunDir, name: str, step: int, *, needed: int, say: Callable[[str], None]) -> Path:
    """Make the folder of a checkpoint (`begin`). If the disk is full, recorded batches go first, which `say` reports.
    Raise `OSError` (ENOSPC) if there is no room even then.
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


OF_EVALUATION = "eval/"
"""What a metric of the evaluations between steps begins with where checkpoints are judged by it."""
SCORED_OVER = 10
"""Steps over whose mean a checkpoint is judged: one step's measure is mostly chance."""


class CheckpointWriter:
    """Keeps the writing that is under way. What it fails with is told at once, and raised to the next who waits for it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._writing: asyncio.Task[None] | None = None
        self._needed = 0
        self._kept = False

    @property
    def needs(self) -> int:
        """Bytes that the checkpoint under way may still take."""
        return 0 if self._writing is None or self._writing.done() else self._needed

    def start(self, writing: Coroutine[Any, Any, None], *, what: str, needed: int) -> None:
        """Write concurrently with the loop. `writing` has its own deadline and takes up to `needed` bytes; `what` names it."""
        assert self._writing is None, "wait for the one before"
        self._needed, self._kept = needed, False
        self._writing = asyncio.create_task(writing)
        self._writing.add_done_callback(lambda task: self._tell(task, what))

    def keep(self) -> None:
        """Note that the writing needs the ranks no more: from now on it is waited for, not given up."""
        self._kept = True

    def _tell(self, task: asyncio.Task[None], what: str) -> None:
        error = "it was given up" if task.cancelled() else task.exception()
        if error:
            self._say(f"{what} was not written: {error}")

    async def written(self) -> None:
        """Wait until nothing is being written; raise what the writing failed with."""
        if self._writing is not None:
            await asyncio.wait({self._writing})  # who gives up waiting does not end the writing
            self.raise_failed()

    def raise_failed(self) -> None:
        """Raise the error of a writing that has failed by now."""
        if self._writing is not None and self._writing.done():
            ended, self._writing = self._writing, None
            ended.result()

    async def let_go(self, *, at_most_s: float | None = None) -> None:
        """Wait until nothing is being written, or give up what the ranks write. A failure is not raised.

        A commit in a thread is waited for: it would otherwise appear behind the back of a reader of the newest checkpoint.
        """
        if self._writing is not None:
            _, late = await asyncio.wait({self._writing}, timeout=at_most_s)
            if late and self._kept:
                await asyncio.wait(late)
            for task in late:
                task.cancel()
            self._writing = None


def scores(rows: Callable[[str], Iterable[MetricsRow]], name: str, config: CheckpointConfig) -> dict[int, float]:
    """Return the score of an instance's checkpoints by step; higher is better. `rows` returns the rows of a name.

    A metric of steps is a mean over some of them, one of evaluations counts as it is. Steps without a finite value have none.
    """
    if config.best is None:
        return {}
    metric = config.best.removeprefix(OF_EVALUATION)
    evaluated = metric != config.best
    measured = rows(evaluations_of(name) if evaluated else name)
    values = {row.step: row.values.get(metric, math.nan) for row in measured}
    sign, found = 1 if config.best_is == "max" else -1, {}
    for step, value in values.items():
        if math.isfinite(value):
            first = step if evaluated else step - SCORED_OVER + 1
            near = [values.get(other, math.nan) for other in range(first, step + 1)]
            found[step] = sign * fmean(one for one in near if math.isfinite(one))
    return found

"""The nested runs of MLflow: one for each stage of a run, with the stage's metrics, settings and duration.

Each is found again, made up for and replaced as the run itself is, from a folder of its own beside the run's. One that somebody
deleted is left alone: the run itself has all of its metrics too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from temper.orchestrator.tracking.data_set import DataSet
from temper.orchestrator.tracking.mlflow.run import MlflowRun
from temper.orchestrator.tracking.tracking_error import RunDeletedError

ENDED = "ended"
"""The file that says that a nested run has all of a stage that is done."""


class StageRuns:
    """The nested runs of one run. Every call may block and may raise, and may be made again then."""

    def __init__(
        self, make: Callable[[str, Path], MlflowRun], *, memory: Path, artifacts: Path, say: Callable[[str], None]
    ) -> None:
        """`make` takes the name of a stage and the folder in which its run is remembered."""
        self._make = make
        self._memory = memory
        self._artifacts = artifacts
        self._say = say
        self._open: dict[str, MlflowRun] = {}
        self._seconds: dict[str, float] = {}
        """Of the stages that are done, and whose runs have not been told."""

    def tell(self, name: str, params: dict[str, str], seconds: float | None, *, data: Sequence[DataSet] = ()) -> None:
        """Begin or continue the run of a stage, with its settings and data; `seconds` is what it took, where it is done."""
        ended = self._memory / name / ENDED
        if seconds is not None and ended.exists():
            return
        ended.unlink(missing_ok=True)
        if name not in self._open:
            made = self._make(name, self._memory / name)
            with self._unless_deleted(name):
                made.connect(self._artifacts)
                self._open[name] = made
        if seconds is not None:
            self._seconds[name] = seconds
        with self._unless_deleted(name):
            if name in self._open:
                self._open[name].send_params(params)
                self._open[name].send_data(data)

    def send_rows(self) -> None:
        """Deliver what the stages have measured, and end the runs of those that are done."""
        for name in list(self._open):
            with self._unless_deleted(name):
                self._open[name].send_rows()
                self._open[name].send_due()
                if name in self._seconds:
                    self._open[name].end("FINISHED", seconds=self._seconds[name])
                    (self._memory / name / ENDED).touch()
                    del self._open[name]

    def end(self, status: str) -> None:
        """End the runs of the stages that are not done."""
        for name in list(self._open):
            with self._unless_deleted(name):
                self._open[name].end(status)

    def let_go(self) -> None:
        """Close the metrics file."""
        for run in self._open.values():
            run.unsent.close()

    @contextmanager
    def _unless_deleted(self, name: str) -> Iterator[None]:
        try:
            yield
        except RunDeletedError as error:
            self._say(f"tracking: {name}: {error}")
            if name in self._open:
                self._open.pop(name).unsent.close()

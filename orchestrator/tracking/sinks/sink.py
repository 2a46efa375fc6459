"""Additional tracking backends: the parts that W&B and trackio share."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tracking.backend import FILE, PAGE, Backend
from temper.orchestrator.tracking.evaluation_table import read_accuracies
from temper.orchestrator.tracking.metric_names import EVALUATIONS
from temper.orchestrator.tracking.sending import Sender

LINK = re.compile(rf"(?: - )?!?\[[^\]]*\]\((?:{PAGE}|{FILE})[^)]*\)")
"""A link in a note to MLflow's pages, or an image on its server."""
CLOSE_S = 45.0
"""Seconds that the end of a run waits for a backend, whose library takes long to import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRun:
    """A run and its additional backend."""

    sink: str
    name: str
    project: str
    metrics: Path
    """The metrics file in the run's folder."""
    state_dir: Path
    """Folder of the sink's state of the run."""
    store: str = ""
    """Folder of trackio's store."""
    entity: str | None = None
    uploads: bool = False
    """Whether W&B uploads at once."""

    @property
    def root(self) -> Path:
        """The folder of the run."""
        return self.metrics.parent

    def relative_path(self, path: Path) -> Path:
        """Return the path of a file in the run's folder; its name if it is elsewhere."""
        return path.relative_to(self.root) if path.is_relative_to(self.root) else Path(path.name)


def make_sink_sender(run: SinkRun, *, notify: Callable[[str], None]) -> Sender:
    """Return the sender of a run to an additional backend. Its thread imports the library."""

    def make() -> Backend:
        run.state_dir.mkdir(parents=True, exist_ok=True)
        if run.sink == "wandb":
            from temper.orchestrator.tracking.sinks.wandb_sink import WandbSink

            return WandbSink(run, notify=notify)
        from temper.orchestrator.tracking.sinks.trackio_sink import make_trackio_sink

        return make_trackio_sink(run)

    return Sender(run.sink, make, notify=notify, close_s=CLOSE_S)


def strip_links(note: str) -> str:
    """Return a note without links to MLflow's pages and images."""
    return LINK.sub("", note).strip()


def find_accuracies(row: MetricsRow, root: Path) -> tuple[int, dict[str, float]]:
    """Return the order of a row's evaluation, and the accuracies by their MLflow names.

    The evaluation's file, written before its row, has them. Empty for other rows, and if the file is gone.
    """
    file = root / "eval" / f"{row.stage.removeprefix(EVALUATIONS)}.json"
    if not row.stage.startswith(EVALUATIONS) or row.event is not None or not file.exists():
        return 0, {}
    result = json.loads(file.read_text(encoding="utf-8"))
    return result["order"], read_accuracies(result)

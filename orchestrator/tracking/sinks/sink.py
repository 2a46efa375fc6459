"""A second place for the reports of a run, and its parts that W&B and trackio have in common."""

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
"""A link of a note to a page of MLflow's, or a picture that it serves."""
CLOSE_S = 45.0
"""Seconds that the end of a run waits for a place: its library alone takes some to be imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRun:
    """Which run is reported, and where to."""

    sink: str
    name: str
    project: str
    metrics: Path
    """The metrics file, whose folder is the run's."""
    state_dir: Path
    """The folder in which the sink keeps its state of the run."""
    store: str = ""
    """The folder of the store, of trackio."""
    entity: str | None = None
    uploads: bool = False
    """Whether W&B uploads at once."""

    @property
    def root(self) -> Path:
        """The folder of the run."""
        return self.metrics.parent

    def relative_path(self, path: Path) -> Path:
        """Return the place of a file in the run's folder; of one that lies elsewhere its name."""
        return path.relative_to(self.root) if path.is_relative_to(self.root) else Path(path.name)


def make_sink_sender(run: SinkRun, *, notify: Callable[[str], None]) -> Sender:
    """Return the sender of a run to a second place, whose library its thread imports."""

    def make() -> Backend:
        run.state_dir.mkdir(parents=True, exist_ok=True)
        if run.sink == "wandb":
            from temper.orchestrator.tracking.sinks.wandb_sink import WandbSink

            return WandbSink(run, notify=notify)
        from temper.orchestrator.tracking.sinks.make_trackio_sink import make_trackio_sink

        return make_trackio_sink(run)

    return Sender(run.sink, make, notify=notify, close_s=CLOSE_S)


def strip_links(note: str) -> str:
    """Return a note without its links to pages of MLflow's, and without pictures that it serves."""
    return LINK.sub("", note).strip()


def find_accuracies(row: MetricsRow, root: Path) -> tuple[int, dict[str, float]]:
    """Return the order of the evaluation of a row, and each environment's accuracy by its name in MLflow.

    They are in the evaluation's file, which is written before its row; empty for other rows, and if it is gone.
    """
    file = root / "eval" / f"{row.stage.removeprefix(EVALUATIONS)}.json"
    if not row.stage.startswith(EVALUATIONS) or row.event is not None or not file.exists():
        return 0, {}
    result = json.loads(file.read_text(encoding="utf-8"))
    return result["order"], read_accuracies(result)

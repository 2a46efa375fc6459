"""A second place for what a run reports, as the process that sends there sees it."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tracking.evaluation_table import accuracies
from temper.orchestrator.tracking.metric_names import ACCURACY, EVALUATIONS, shown_name
from temper.orchestrator.tracking.notes import FILE, PAGE
from temper.orchestrator.tracking.tracker import Ended
from temper.orchestrator.tracking.unsent_rows import UnsentRows

LINK = re.compile(rf"(?: - )?!?\[[^\]]*\]\((?:{PAGE}|{FILE})[^)]*\)")
"""A link of a note to a page of MLflow's, or a picture that it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRun:
    """Which run is reported, and where to."""

    sink: str
    name: str
    project: str
    metrics: str
    """The metrics file, whose folder is the run's."""
    memory: str
    """The folder in which the sink keeps what it knows of the run."""
    store: str = ""
    """The folder of the store, of trackio."""
    entity: str | None = None
    uploads: bool = False
    """Whether W&B uploads at once."""

    @property
    def root(self) -> Path:
        """The folder of the run."""
        return Path(self.metrics).parent

    def place_of(self, path: Path) -> Path:
        """Return where a file lies in the run's folder; of one that lies elsewhere its name."""
        return path.relative_to(self.root) if path.is_relative_to(self.root) else Path(path.name)


class Sink(Protocol):
    """One run in one place. Every call may block and may raise, and may be made again then."""

    def connect(self) -> UnsentRows:
        """Find the run or create it; returns what of the metrics file it does not have.

        Called again where rows that it has were cut off the file: then it takes them back.
        """
        ...

    @property
    def where(self) -> str:
        """Where the run lies and how it is seen, for people; known once it is connected."""
        ...

    def send_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Deliver rows, in the order of the file."""
        ...

    def send_params(self, values: dict[str, str]) -> None:
        """Deliver the configuration, in the place of what was delivered before."""
        ...

    def describe(self, note: str) -> None:
        """Deliver the description, in Markdown."""
        ...

    def store(self, path: Path) -> None:
        """Deliver a file, to where it lies in the run's folder."""
        ...

    def end(self, ended: Ended) -> None:
        """Mark the run as ended, and wait, within a deadline, until all is delivered."""
        ...


MakeSink = Callable[[SinkRun, Callable[[str], None]], Sink]


def shown_values(row: MetricsRow) -> dict[str, float]:
    """Return a row's values that are numbers, under the names that MLflow shows too."""
    return {shown_name(row.stage, name): value for name, value in row.values.items() if math.isfinite(value)}


def without_links(note: str) -> str:
    """Return a note without its links to pages of MLflow's, and without pictures that it serves."""
    return LINK.sub("", note).strip()


def accuracies_of(row: MetricsRow, root: Path) -> tuple[int, dict[str, float]]:
    """Return the order of the evaluation of which this is the row, and each environment's accuracy by its name in MLflow.

    They stand in the evaluation's file, which is written before its row; empty for other rows, and where it is gone.
    """
    file = root / "eval" / f"{row.stage.removeprefix(EVALUATIONS)}.json"
    if not row.stage.startswith(EVALUATIONS) or row.event is not None or not file.exists():
        return 0, {}
    result = json.loads(file.read_text(encoding="utf-8"))
    return result["order"], {f"{ACCURACY}/{env}": value for env, value in accuracies(result).items()}

"""One run in MLflow: found again or created, then sent to. The home of MLflow. Every call may block and may raise."""

import json
import logging
import math
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow reads this one when it is imported

from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from orchestrator.run.folder import write_json
from orchestrator.run.metrics_log import MetricsRow, parse_row
from orchestrator.run.unsent_rows import UnsentRows

ROWS_AT_ONCE = 100
AT_ONCE = {"metrics": 1000, "params": 100, "tags": 100}
"""What MLflow takes in one call."""
LONGEST_VALUE = 6000
MARK = "temper.run"
"""The tag by which a run is found whose id was not stored, since the process was killed just when it was created."""
REJECTED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "MALFORMED_REQUEST")
"""MLflow's answers to a request that will never succeed; anything else is worth another try."""


class RunDeletedError(RuntimeError):
    """Somebody deleted the run in MLflow."""


class MlflowRun:
    """The run of a metrics file at a tracking server. `memory` is the folder in which it is remembered.

    `run.json` there has the mark that the run bears and, as soon as it is known, its id; `<id>.sent` says which rows of the
    file it has.
    """

    def __init__(
        self, uri: str, *, experiment: str, name: str, metrics: Path, memory: Path, say: Callable[[str], None]
    ) -> None:
        for variable, value in (("TIMEOUT", "5"), ("MAX_RETRIES", "0"), ("BACKOFF_FACTOR", "0")):
            os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{variable}", value)
        for logger in ("mlflow", "alembic"):  # their notes on a new database are no news of the run
            logging.getLogger(logger).setLevel(logging.WARNING)
        self._uri = uri
        self._experiment = experiment
        self._name = name
        self._metrics = metrics
        self._memory = memory
        self._say = say
        self._refused: set[str] = set()
        self._params: dict[str, str] = {}
        self._unsent = UnsentRows(metrics, memory / "nothing.sent")

    @property
    def unsent(self) -> int:
        """How many rows of the metrics file did not arrive."""
        return self._unsent.count()

    def connect(self, artifacts: Path) -> None:
        """Find the run, or create it; nothing is sent before its id is stored.

        A new experiment in a local store keeps its files in the folder `artifacts`. Raise `RunDeletedError`.
        """
        if self._uri.startswith("sqlite:///"):
            artifacts.parent.mkdir(parents=True, exist_ok=True)
        self._client: Any = MlflowClient(self._uri)
        mark, known = self._remembered()
        experiment_id = self._experiment_id(artifacts)
        run = self._run(known) or self._marked(mark, experiment_id)
        if run is None:
            if known is not None:
                self._say(f"tracking: {self._uri} has no run {known}; a new one is begun there, with all rows")
            run = self._client.create_run(experiment_id, run_name=self._name, tags={MARK: mark})
        self._id = str(run.info.run_id)
        write_json(self._memory / "run.json", {"mark": mark, "run_id": self._id})
        self._require_active(run)
        self._client.update_run(self._id, status="RUNNING")
        self._params = dict(run.data.params)
        self._unsent = UnsentRows(self._metrics, self._memory / f"{self._id}.sent")

    def send_rows(self) -> None:
        """Deliver all rows that are not there yet. Delivering one twice leaves one: time and value are the same."""
        while lines := self._unsent.next(ROWS_AT_ONCE):
            rows = [row for line in lines if (row := self._row(line)) is not None]
            self._log("metrics", [metric for row in rows for metric in _metrics(row)])
            self._log("tags", [_event(row) for row in rows if row.event is not None])
            self._unsent.done(lines)

    def send_params(self, values: dict[str, str]) -> None:
        """Deliver the configuration. MLflow never changes a parameter: one that differs now becomes the tag `now.<name>`."""
        cut = {name: value[:LONGEST_VALUE] for name, value in values.items()}
        self._log("params", [Param(name, value) for name, value in cut.items() if name not in self._params])
        changed = {name: value for name, value in cut.items() if self._params.get(name, value) != value}
        self._log("tags", [RunTag(f"now.{name}", value) for name, value in changed.items()])

    def store(self, path: Path) -> None:
        """Deliver a file. The only call that another thread than that of the others may make."""
        self._client.log_artifact(self._id, str(path))

    def end(self, status: str) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._id, status=status)

    def _remembered(self) -> tuple[str, str | None]:
        """Return the mark of the run, stored before it is used for the first time, and the run's id where that is known."""
        path = self._memory / "run.json"
        if not path.exists():
            self._memory.mkdir(parents=True, exist_ok=True)
            write_json(path, {"mark": uuid.uuid4().hex, "run_id": None})
        raw = json.loads(path.read_text(encoding="utf-8"))
        return raw["mark"], raw["run_id"]

    def _run(self, run_id: str | None) -> Run | None:
        try:
            return None if run_id is None else self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None

    def _marked(self, mark: str, experiment_id: str) -> Run | None:
        found = self._client.search_runs(
            [experiment_id], filter_string=f"tags.`{MARK}` = '{mark}'", run_view_type=ViewType.ALL
        )
        return found[0] if found else None

    def _require_active(self, run: Run | None) -> None:
        if run is None or run.info.lifecycle_stage == LifecycleStage.DELETED:
            raise RunDeletedError(
                f"the run {self._id} was deleted at {self._uri}, so nothing more is sent; restore it there, or delete "
                f"{self._memory} to begin a new one; metrics.jsonl has all"
            )

    def _experiment_id(self, artifacts: Path) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            location = artifacts.as_uri() if self._uri.startswith("sqlite:") else None
            return str(self._client.create_experiment(self._experiment, artifact_location=location))
        if found.lifecycle_stage == LifecycleStage.DELETED:
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _row(self, line: str) -> MetricsRow | None:
        """Return the row of a line; None, which is said, where it is none: it must not hold up those behind it."""
        try:
            return parse_row(line)
        except ValueError as error:
            self._say(f"tracking: {self._metrics} has a line that is left out: {error}")
            return None

    def _log(self, what: str, entries: list[Any]) -> None:
        for start in range(0, len(entries), AT_ONCE[what]):
            self._log_batch(what, entries[start : start + AT_ONCE[what]])

    def _log_batch(self, what: str, entries: list[Any]) -> None:
        """Make one call; where MLflow refuses it, the entries that it refuses are found, said once each, and left out."""
        try:
            self._client.log_batch(self._id, **{what: entries})
        except MlflowException as error:
            if error.error_code not in REJECTED:
                raise
            self._require_active(self._run(self._id))
            if len(entries) > 1:
                middle = len(entries) // 2
                self._log_batch(what, entries[:middle])
                self._log_batch(what, entries[middle:])
            elif entries[0].key not in self._refused:
                self._refused.add(entries[0].key)
                self._say(f"tracking: {self._uri} refuses {entries[0].key!r}: {first_line(error)}")


def first_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _metrics(row: MetricsRow) -> list[Metric]:
    """Return a row's values that are numbers, with the time of the row."""
    time_ms = round(row.time * 1000)
    return [
        Metric(f"{row.stage}/{name}", value, time_ms, row.step)
        for name, value in row.values.items()
        if math.isfinite(value)
    ]


def _event(row: MetricsRow) -> RunTag:
    what = ", ".join(f"{name} {value}" for name, value in row.event_text.items())
    text = f"{row.stage} after step {row.step}: {row.event and row.event['kind']} {what}"
    return RunTag(f"event.{round(row.time * 1000)}", text[:LONGEST_VALUE])

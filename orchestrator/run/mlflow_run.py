"""One run in MLflow: found again or created, then sent to. The home of MLflow. Every call may block and may raise.

MLflow takes nothing back, so a run whose metrics file lost rows that were sent, as it does where a stage goes on from a
checkpoint, is replaced there: a new one gets all that the file has, and the old one is tagged and deleted (`mlflow gc`
empties that bin).
"""

import json
import logging
import math
import os
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow reads this one when it is imported

from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from orchestrator.run.folder import write_json
from orchestrator.run.metrics_log import MetricsRow, parse_row
from orchestrator.run.tracking_error import RunDeletedError, first_line
from orchestrator.run.unsent_rows import UnsentRows

ROWS_AT_ONCE = 100
AT_ONCE = {"metrics": 1000, "params": 100, "tags": 100}
"""What MLflow takes in one call."""
LONGEST_VALUE = 6000
MARK = "temper.run"
"""The tag by which a run is found whose id was not stored, since the process was killed just when it was created."""
REPLACED_BY = "temper.replaced_by"
"""The tag of a deleted run that says which run has its surviving history."""
OWN_TAGS = ("temper.", "event.", "now.", "mlflow.runName")
"""Tags that are made anew in a run that replaces another; those of people move with it."""
REJECTED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "MALFORMED_REQUEST")
"""MLflow's answers to a request that will never succeed; anything else is worth another try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What outlives the process, in `run.json`: stored before it is used."""

    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The tag that the run bears."""
    run_id: str | None = None
    """Its id, as soon as that is known."""
    replaced: tuple[str, ...] = ()
    """The runs that this one replaces, as far as they are not deleted yet."""


class MlflowRun:
    """The run of a metrics file at a tracking server. `memory` is the folder in which it is remembered.

    `<id>.sent` there says which rows of the file it has.
    """

    def __init__(
        self, uri: str, *, experiment: str, name: str, metrics: Path, memory: Path, say: Callable[[str], None]
    ) -> None:
        _be_brief()
        self._uri = uri
        self._experiment_name = experiment
        self._name = name
        self._metrics = metrics
        self._memory = memory
        self._say = say
        self._refused: set[str] = set()
        self._params: dict[str, str] = {}
        self._given: dict[str, str] = {}
        """The configuration as this process was told it."""
        self._params_due = False
        """Whether a new run has yet to get what the one before was told."""
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
        self._experiment_id = self._experiment(artifacts)
        self._adopt(self._remembered())

    @property
    def run_id(self) -> str:
        """Its id, once it is connected; another one after rows that were sent have been cut off the file."""
        return self._id

    def send_rows(self) -> None:
        """Deliver all rows that are not there yet. Delivering one twice leaves one: time and value are the same."""
        if self._unsent.is_cut():
            self._begin_anew()
        if self._params_due:
            self.send_params(self._given)
            self._params_due = False
        while lines := self._unsent.next(ROWS_AT_ONCE):
            rows = [row for line in lines if (row := self._row(line)) is not None]
            self._unsent.offer(lines)
            self._log("metrics", [metric for row in rows for metric in _metrics(row)])
            self._log("tags", [_event(row) for row in rows if row.event is not None])
            self._unsent.done(lines)
        self._delete_replaced()  # not before the new run has everything

    def send_params(self, values: dict[str, str]) -> None:
        """Deliver the configuration. MLflow never changes a parameter: one that differs now becomes the tag `now.<name>`."""
        self._given |= values
        cut = {name: value[:LONGEST_VALUE] for name, value in values.items()}
        self._log("params", [Param(name, value) for name, value in cut.items() if name not in self._params])
        changed = {name: value for name, value in cut.items() if self._params.get(name, value) != value}
        self._log("tags", [RunTag(f"now.{name}", value) for name, value in changed.items()])

    def store(self, path: Path) -> None:
        """Deliver a file, to where it lies in the run's folder. The only call that another thread may make."""
        folder, root = path.absolute().parent, self._metrics.absolute().parent
        place = folder.relative_to(root).as_posix() if folder.is_relative_to(root) else "."
        self._client.log_artifact(self._id, str(path), artifact_path=None if place == "." else place)

    def end(self, status: str) -> None:
        """Mark the run as ended."""
        self._unsent.close()
        self._client.set_terminated(self._id, status=status)

    def _begin_anew(self) -> None:
        """Go on in a new run, which will get the rows that the file still has, in the place of the one that has more."""
        known = self._remembered()
        if known.run_id is not None:
            known = Remembered(replaced=(*known.replaced, known.run_id))
            self._remember(known)
        self._adopt(known)
        self._params_due = True

    def _adopt(self, known: Remembered) -> None:
        """Find or create the run that is remembered, and be it."""
        run = self._run(known.run_id) or self._marked(known.mark)
        if run is None:
            if known.run_id is not None:
                self._say(f"tracking: {self._uri} has no run {known.run_id}; a new one is begun there, with all rows")
            run = self._created(known)
        self._id = str(run.info.run_id)
        self._remember(replace(known, run_id=self._id))
        self._require_active(run)
        self._client.update_run(self._id, status="RUNNING")
        self._params = dict(run.data.params)
        self._unsent.close()
        self._unsent = UnsentRows(self._metrics, self._memory / f"{self._id}.sent")

    def _delete_replaced(self) -> None:
        """Tag and delete the runs that this one replaces. A server that refuses is named, and the run stays there."""
        known = self._remembered()
        for old in known.replaced:
            try:
                self._delete(old)
            except MlflowException as error:
                if error.error_code not in (*REJECTED, "PERMISSION_DENIED"):
                    raise
                self._say(
                    f"tracking: {self._uri} keeps the run {old} ({first_line(error)}), which {self._id} replaces: it "
                    f"has rows that metrics.jsonl has no more"
                )
            (self._memory / f"{old}.sent").unlink(missing_ok=True)
        if known.replaced:
            self._remember(replace(known, replaced=()))

    def _delete(self, old: str) -> None:
        run = self._run(old)
        if run is not None and run.info.lifecycle_stage != LifecycleStage.DELETED:
            self._client.set_tag(old, REPLACED_BY, self._id)
            self._client.update_run(old, status="KILLED")
            self._client.delete_run(old)

    def _remembered(self) -> Remembered:
        """Return what is remembered of the run; for a new one its mark, stored before it is used for the first time."""
        path = self._memory / "run.json"
        if not path.exists():
            self._memory.mkdir(parents=True, exist_ok=True)
            self._remember(Remembered())
        raw = json.loads(path.read_text(encoding="utf-8"))
        return Remembered(mark=raw["mark"], run_id=raw["run_id"], replaced=tuple(raw.get("replaced", ())))

    def _remember(self, known: Remembered) -> None:
        write_json(self._memory / "run.json", asdict(known))

    def _created(self, known: Remembered) -> Run:
        """Create the run, with the beginning and the people's tags of the one that it replaces."""
        old = self._run(known.replaced[-1]) if known.replaced else None
        began, tags = (None, {}) if old is None else (old.info.start_time, old.data.tags)
        kept = {name: value for name, value in tags.items() if not name.startswith(OWN_TAGS)}
        made: Run = self._client.create_run(
            self._experiment_id, start_time=began, run_name=self._name, tags=kept | {MARK: known.mark}
        )
        return made

    def _run(self, run_id: str | None) -> Run | None:
        try:
            return None if run_id is None else self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None

    def _marked(self, mark: str) -> Run | None:
        found = self._client.search_runs(
            [self._experiment_id], filter_string=f"tags.`{MARK}` = '{mark}'", run_view_type=ViewType.ALL
        )
        return found[0] if found else None

    def _require_active(self, run: Run | None) -> None:
        if run is None or run.info.lifecycle_stage == LifecycleStage.DELETED:
            raise RunDeletedError(
                f"the run {self._id} was deleted at {self._uri}, so nothing more is sent; restore it there, or delete "
                f"{self._memory} to begin a new one; metrics.jsonl has all"
            )

    def _experiment(self, artifacts: Path) -> str:
        found = self._client.get_experiment_by_name(self._experiment_name)
        if found is None:
            location = artifacts.as_uri() if self._uri.startswith("sqlite:") else None
            return str(self._client.create_experiment(self._experiment_name, artifact_location=location))
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


def known_experiments(uri: str) -> int:
    """Return how many experiments a store knows, up to 100. Raise whatever MLflow raises where it does not answer."""
    _be_brief()
    client: Any = MlflowClient(uri)
    return len(client.search_experiments(max_results=100))


def _be_brief() -> None:
    """Let MLflow give up soon, and say little."""
    for variable, value in (("TIMEOUT", "5"), ("MAX_RETRIES", "0"), ("BACKOFF_FACTOR", "0")):
        os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{variable}", value)
    for logger in ("mlflow", "alembic"):  # their notes on a new database are no news of the run
        logging.getLogger(logger).setLevel(logging.WARNING)


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

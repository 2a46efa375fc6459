"""One run in MLflow: found or created, then sent to. The home of MLflow. Every call may block and may raise.

MLflow can't delete values. If a stage resumes from a checkpoint, the metrics file may lose sent rows. The run is then
replaced: a new run gets the whole file, and the old one is tagged and deleted.
"""

import json
import logging
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow reads these when it is imported
os.environ.setdefault("DO_NOT_TRACK", "true")

from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LifecycleStage,
    Metric,
    Param,
    Run,
    RunTag,
    ViewType,
)
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from temper.orchestrator.run.folder import evaluations_of
from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tracking.backend import (
    REJECTED,
    Backend,
    DataSet,
    RunDeletedError,
    RunStatus,
    first_line,
    is_refusal,
)
from temper.orchestrator.tracking.metric_names import display_values
from temper.orchestrator.tracking.mlflow.stored_run import StoredRun
from temper.orchestrator.tracking.unsent_rows import RunIdentity, UnsentRows, load_identity, save_identity

AT_ONCE = {"metrics": 1000, "params": 100, "tags": 100}
"""MLflow's maximum of entries per call."""
LONGEST_VALUE = 6000
MARK = "temper.run"
"""Tag that finds a run if its process was killed before its id was stored."""
STAGE_MARK = "temper.stage_run"
"""The same tag for the nested run of a stage."""
REPLACED_BY = "temper.replaced_by"
PARENT = "mlflow.parentRunId"
STAGE = "temper.stage"
OWN_TAGS = ("temper.", "event.", "now.", "mlflow.runName")
"""Tags that a replacing run creates anew. Users' tags are copied."""


class MlflowRun(Backend):
    """A run in a store. Its `state_dir` holds its identity, and `<id>.sent` counts the rows sent."""

    def __init__(self, run: StoredRun, *, notify: Callable[[str], None], parent: "MlflowRun | None" = None) -> None:
        """With a `parent` it is the nested run of the stage `run.name` and gets only its rows."""
        if run.is_local:
            run.artifacts.parent.mkdir(parents=True, exist_ok=True)
        self.client = make_client(run.uri)
        self.run = run
        self.id = ""
        self.experiment_id = ""
        self._notify = notify
        self._parent = parent
        self._params: dict[str, str] = {}
        self._rejected: set[str] = set()
        """Rejected keys that were already reported."""

    @property
    def replaced(self) -> tuple[str, ...]:
        """The runs that this one replaces and that are not deleted yet."""
        return load_identity(self.run.state_dir).replaced

    def connect(self) -> UnsentRows:
        """Find or create the run, and replace one with rows that the file lost. Return the unsent rows.

        Raise `RunDeletedError` if it was deleted.
        """
        self.experiment_id = self._experiment()
        known = load_identity(self.run.state_dir)
        run = self._find(known.run_id) or self._find_by_mark(known.mark)
        if run is None and known.run_id is not None:
            self._notify(f"tracking: {self.run.uri} has no run {known.run_id}; a new one gets all rows")
        if run is not None:
            self.id = str(run.info.run_id)
            self._require_active(run)
            unsent = self._open_unsent()
            if unsent.has_lost_rows():
                known, run = RunIdentity(replaced=(*known.replaced, self.id)), None
                save_identity(self.run.state_dir, known)
            unsent.close()
        run = run or self._create(known)
        self.id = str(run.info.run_id)
        save_identity(self.run.state_dir, replace(known, run_id=self.id))
        self.client.update_run(self.id, status="RUNNING")
        self._params = dict(run.data.params)
        return self._open_unsent()

    def require_run(self) -> None:
        self._require_active(self._find(self.id))

    def send_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Send rows. Sending a row twice stores it once, because time and value are equal."""
        of = None if self._parent is None else self.run.name
        self._log("metrics", [metric for row in rows for metric in _metrics(row, of)])
        self._log("tags", [_event(row) for row in rows if row.event is not None])

    def send_params(self, values: dict[str, str]) -> None:
        """Send the configuration. MLflow never changes a parameter, so a changed one becomes the tag `now.<name>`."""
        cut = {name: value[:LONGEST_VALUE] for name, value in values.items()}
        self._log("params", [Param(name, value) for name, value in cut.items() if name not in self._params])
        changed = {name: value for name, value in cut.items() if self._params.get(name, value) != value}
        self.send_tags({f"now.{name}": value for name, value in changed.items()})

    def send_tags(self, values: dict[str, str]) -> None:
        self._log("tags", [RunTag(name, value) for name, value in values.items()])

    def send_data(self, data: Sequence[DataSet]) -> None:
        inputs = [
            DatasetInput(
                Dataset(
                    name=one.name,
                    digest=one.digest,
                    source_type=one.kind,
                    source=json.dumps({"uri": one.source}),
                    profile=json.dumps(dict(one.facts)),
                ),
                [InputTag("mlflow.data.context", one.context)],
            )
            for one in data
        ]
        if inputs:
            self.client.log_inputs(self.id, datasets=inputs)

    def delete_replaced(self) -> None:
        """Tag and delete the replaced runs once this one is complete. A server may refuse."""
        known = load_identity(self.run.state_dir)
        for old in known.replaced:
            try:
                self._delete(old)
            except MlflowException as error:
                if not is_refusal(error):
                    raise
                self._notify(
                    f"tracking: {self.run.uri} refuses to delete the run {old} ({first_line(error)}), which {self.id} "
                    f"replaces; delete it by hand, as metrics.jsonl lacks some of its rows"
                )
            for file in self.run.state_dir.glob(f"{old}.*"):
                file.unlink()
        if known.replaced:
            save_identity(self.run.state_dir, replace(known, replaced=()))

    def end(self, ended: RunStatus) -> None:
        self.client.set_terminated(self.id, status=ended.value)

    def _open_unsent(self) -> UnsentRows:
        stages = () if self._parent is None else (self.run.name, evaluations_of(self.run.name))
        return UnsentRows(self.run.metrics, self.run.state_dir / f"{self.id}.sent", stages)

    def _log(self, kind: str, entries: list[Any]) -> None:
        for start in range(0, len(entries), AT_ONCE[kind]):
            self._log_batch(kind, entries[start : start + AT_ONCE[kind]])

    def _log_batch(self, kind: str, entries: list[Any]) -> None:
        """Make one call. Rejected entries are skipped, and each key is reported once."""
        try:
            self.client.log_batch(self.id, **{kind: entries})
        except MlflowException as error:
            if error.error_code not in REJECTED:
                raise
            self.require_run()
            if len(entries) > 1:
                middle = len(entries) // 2
                self._log_batch(kind, entries[:middle])
                self._log_batch(kind, entries[middle:])
            elif entries[0].key not in self._rejected:
                self._rejected.add(entries[0].key)
                self._notify(f"tracking: {self.run.uri} rejects {entries[0].key!r} ({first_line(error)})")

    def _delete(self, old: str) -> None:
        run = self._find(old)
        if run is not None and run.info.lifecycle_stage != LifecycleStage.DELETED:
            self.client.set_tag(old, REPLACED_BY, self.id)
            for nested in self._search_by_tag(PARENT, old, ViewType.ACTIVE_ONLY):
                self.client.set_tag(nested.info.run_id, PARENT, self.id)
            self.client.update_run(old, status="KILLED")
            self.client.delete_run(old)

    def _create(self, known: RunIdentity) -> Run:
        """Create the run, with the start time and users' tags of a replaced one."""
        old = self._find(known.replaced[-1]) if known.replaced else None
        began, tags = (None, {}) if old is None else (old.info.start_time, old.data.tags)
        kept = {name: value for name, value in tags.items() if not name.startswith(OWN_TAGS)}
        own = {MARK: known.mark}
        if self._parent is not None:
            own = {STAGE_MARK: known.mark, STAGE: self.run.name, PARENT: self._parent.id}
        made: Run = self.client.create_run(
            self.experiment_id, start_time=began, run_name=self.run.name, tags=kept | own
        )
        return made

    def _find(self, run_id: str | None) -> Run | None:
        try:
            return None if run_id is None else self.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None

    def _find_by_mark(self, mark: str) -> Run | None:
        found = self._search_by_tag(MARK if self._parent is None else STAGE_MARK, mark, ViewType.ALL)
        return found[0] if found else None

    def _search_by_tag(self, tag: str, value: str, view: int) -> list[Run]:
        query = f"tags.`{tag}` = '{value}'"
        return list(self.client.search_runs([self.experiment_id], filter_string=query, run_view_type=view))

    def _require_active(self, run: Run | None) -> None:
        if run is None or run.info.lifecycle_stage == LifecycleStage.DELETED:
            raise RunDeletedError(
                f"the run {self.id} was deleted at {self.run.uri}, so nothing more is sent. Restore it there, or delete "
                f"{self.run.state_dir} to start a new one. metrics.jsonl keeps all rows"
            )

    def _experiment(self) -> str:
        found = self.client.get_experiment_by_name(self.run.experiment)
        if found is None:
            location = self.run.artifacts.as_uri() if self.run.is_local else None
            return str(self.client.create_experiment(self.run.experiment, artifact_location=location))
        if found.lifecycle_stage == LifecycleStage.DELETED:
            self.client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)


def _metrics(row: MetricsRow, of: str | None) -> list[Metric]:
    time = round(row.time * 1000)
    values = display_values(row, of=of)
    return [Metric(name, value, time, row.step) for name, value in values.items()]


def _event(row: MetricsRow) -> RunTag:
    """Return an event under its millisecond and text, so that a repeated event is stored once."""
    text = uuid.uuid5(uuid.NAMESPACE_OID, row.event_line).hex[:8]
    return RunTag(f"event.{round(row.time * 1000)}.{text}", row.event_line[:LONGEST_VALUE])


def count_experiments(uri: str) -> int:
    """Return the number of experiments in a store, up to 100. Raise MLflow's error if it does not answer."""
    return len(make_client(uri).search_experiments(max_results=100))


def make_client(uri: str) -> Any:
    """Return a client with short timeouts and little logging."""
    for variable, value in (("TIMEOUT", "5"), ("MAX_RETRIES", "0"), ("BACKOFF_FACTOR", "0")):
        os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{variable}", value)
    for logger in ("mlflow", "alembic"):  # they log the creation of a database
        logging.getLogger(logger).setLevel(logging.WARNING)
    for logger in ("mlflow.store.db.utils", "mlflow.system_metrics"):  # they print the stack of each error
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    return MlflowClient(uri)

"""A run in MLflow with its nested runs, files, tables, traces, data sets, model and system metrics."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
from mlflow.tracing.client import TracingClient

from temper.orchestrator.tracking.backend import FILE, PAGE, DataSet, RunDeletedError, RunStatus
from temper.orchestrator.tracking.evaluation_table import build_table, read_accuracies
from temper.orchestrator.tracking.mlflow.run import MlflowRun
from temper.orchestrator.tracking.mlflow.stored_run import StoredRun
from temper.orchestrator.tracking.mlflow.traces import SOURCE_RUN, build_trace, sample_rows
from temper.orchestrator.tracking.unsent_rows import UnsentRows

NOTE = "mlflow.note.content"
"""MLflow's tag for the description of a run."""
LINE = "<!-- below this line the run describes itself -->"
STAGES_S = 30.0
"""Seconds between two batches of the nested runs."""
SECONDS = "temper.seconds"
"""Tag of a nested run: time of its stage, over all processes that worked on it."""
ENDED = "ended"
"""File that marks a nested run as complete."""
TABLES = "mlflow.loggedArtifacts"
"""Tag of a run that lists its tables for MLflow's evaluation page."""


class MlflowBackend(MlflowRun):
    """The run of the whole metrics file in one store."""

    def __init__(self, run: StoredRun, *, notify: Callable[[str], None]) -> None:
        super().__init__(run, notify=notify)
        self._root = run.metrics.absolute().parent
        self._nested: dict[str, StageRun] = {}
        self._sent_stages = 0.0
        self._monitor: Any = None
        self._orders: dict[str, int] = {}
        """The order of the evaluation of each stored table."""

    def describe(self, note: str) -> None:
        there = self.client.get_run(self.id).data.tags.get(NOTE, "")
        page = f"#/experiments/{self.experiment_id}/runs/{self.id}"
        file = f"get-artifact?run_uuid={self.id}&path="
        self.send_tags({NOTE: merge_note(there, note, page=page, file=file)})

    def store(self, path: Path) -> None:
        """Send a file to its path in the run's folder, and an evaluation also as a table and accuracies."""
        folder = path.absolute().parent
        folder_path = folder.relative_to(self._root).as_posix() if folder.is_relative_to(self._root) else "."
        self.client.log_artifact(self.id, str(path), artifact_path=None if folder_path == "." else folder_path)
        if path.suffix == ".json" and folder == self._root / "eval":
            self._store_evaluation(path)

    def store_episodes(self, path: Path) -> None:
        """Send episodes of a trajectory file as traces, once."""
        if self.run.traces_per_file == 0 or not path.exists():
            return
        ended, record = path.stat().st_mtime, self.run.state_dir / f"{self.id}.traced"
        done = f"{path.name} {ended}"
        if record.exists() and done in record.read_text(encoding="utf-8").splitlines():
            return
        client: Any = TracingClient(self.run.uri)
        for number, row in sample_rows(path, self.run.traces_per_file):
            experiment = self.experiment_id
            info, spans = build_trace(row, number, ended=ended, experiment=experiment, run=self.id, file=path.name)
            client.start_trace(info)
            client.log_spans(experiment, spans)
        with record.open("a", encoding="utf-8") as file:
            file.write(done + "\n")

    def stage(self, name: str, params: dict[str, str], seconds: float | None, data: Sequence[DataSet]) -> None:
        ended = self.run.state_dir / "stages" / name / ENDED
        if self.run.stages and (seconds is None or not ended.exists()):
            ended.unlink(missing_ok=True)
            nested = self._nested.get(name) or StageRun(name, parent=self, notify=self._notify)
            nested.set_stage(params, seconds, data)
            self._nested[name] = nested
        self.send_data(data)

    def register(self, model: Path, facts: dict[str, str]) -> None:
        """Make a checkpoint the newest version of a registered model, once per run and checkpoint path."""
        if not (name := self.run.model_name):
            return
        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        found = self.client.search_model_versions(f"name = '{name}' and run_id = '{self.id}'")
        known = next((version for version in found if version.source == str(model)), None)
        version = known or self.client.create_model_version(name, source=str(model), run_id=self.id, tags=facts)
        self.client.set_registered_model_alias(name, "newest", version.version)

    def finish_batch(self, *, last: bool) -> None:
        if last or monotonic() >= self._sent_stages + STAGES_S:
            self._sent_stages = monotonic()
            for name, nested in list(self._nested.items()):
                try:
                    done = nested.send()
                except RunDeletedError as error:  # the parent run has all metrics
                    self._notify(f"tracking: {name}: {error}")
                    done = True
                if done:
                    self._nested.pop(name).close()
        self._delete_replaced_traces()
        self.delete_replaced()
        if self.run.system_s and not last:
            self._start_monitor()

    def end(self, ended: RunStatus) -> None:
        for nested in self._nested.values():
            with suppress(RunDeletedError):
                nested.end(ended)
            nested.close()
        self._nested.clear()
        super().end(ended)
        if self._monitor is not None:
            self._monitor.finish()

    def _store_evaluation(self, path: Path) -> None:
        result = json.loads(path.read_text(encoding="utf-8"))
        order = result["order"]
        answers = self._root / "trajectories" / f"eval-{result['label']}.jsonl" if self.run.traces_per_file else None
        table = f"eval/{path.stem}.table.json"
        self.client.log_dict(self.id, build_table(result, answers), table)
        self._orders[table] = order
        tags = self.client.get_run(self.id).data.tags
        known = {one["path"] for one in json.loads(tags.get(TABLES, "[]"))} | {table}
        newest = sorted(known, key=lambda one: -self._orders.get(one, 0))  # the page opens on the first
        self.send_tags({TABLES: json.dumps([{"path": one, "type": "table"} for one in newest])})
        time = round(path.stat().st_mtime * 1000)
        for name, value in read_accuracies(result).items():
            known_steps = {metric.step for metric in self.client.get_metric_history(self.id, name)}
            if order not in known_steps:  # a second value with another time would be a duplicate
                self._log("metrics", [Metric(name, value, time, order)])

    def _delete_replaced_traces(self) -> None:
        """Delete the traces of replaced runs, which would outlive them."""
        for old in self.replaced if self.run.traces_per_file else ():
            query = f"metadata.`{SOURCE_RUN}` = '{old}'"
            search = partial(self.client.search_traces, filter_string=query, max_results=100)
            while found := search(locations=[self.experiment_id], include_spans=False):
                ids = [trace.info.trace_id for trace in found]
                self.client.delete_traces(self.experiment_id, trace_ids=ids)

    def _start_monitor(self) -> None:
        """Start MLflow's monitor of this machine, again after an outage, which ends it, or for another run."""
        thread = None if self._monitor is None else self._monitor._process
        if thread is not None and thread.is_alive() and self._monitor._run_id == self.id:
            return
        self._monitor = SystemMetricsMonitor(
            self.id, sampling_interval=self.run.system_s, resume_logging=True, tracking_uri=self.run.uri
        )
        self._monitor.start()


class StageRun(MlflowRun):
    """The nested run of a stage, sent with the batches of its parent run."""

    def __init__(self, name: str, *, parent: MlflowBackend, notify: Callable[[str], None]) -> None:
        state_dir = parent.run.state_dir / "stages" / name
        super().__init__(replace(parent.run, name=name, state_dir=state_dir), notify=notify, parent=parent)
        self._rows: UnsentRows | None = None

    def set_stage(self, params: dict[str, str], seconds: float | None, data: Sequence[DataSet]) -> None:
        """Set the settings and data of the stage, and its time if it is done."""
        self._stage_settings = params, data
        self._seconds = seconds
        self._is_stale = True

    def send(self) -> bool:
        """Send new data. Return whether the stage is done and its run ended."""
        if self._rows is None or self._rows.has_lost_rows():
            self.close()
            self._rows = self.connect()
            self._is_stale = True
        self._rows.send(self.send_rows, notify=self._notify)
        if self._is_stale:
            self._is_stale = False
            params, data = self._stage_settings
            self.send_params(params)
            self.send_data(data)
        self.delete_replaced()
        if self._seconds is None:
            return False
        self.send_tags({SECONDS: f"{self._seconds:.1f}"})
        self.end(RunStatus.FINISHED)
        (self.run.state_dir / ENDED).touch()
        return True

    def end(self, ended: RunStatus) -> None:
        if self._rows is not None:
            super().end(ended)

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
        self._rows = None


def merge_note(there: str, note: str, *, page: str, file: str) -> str:
    """Return the description with the new note. The text above it, written by users, stays.

    `page` is the address of the run's page, `file` the start of the address of its files.
    """
    theirs, line, _ = there.partition(LINE)
    above = theirs.strip() if line else there.strip()
    return (f"{above}\n\n" if above else "") + f"{LINE}\n\n{note.replace(PAGE, page).replace(FILE, file)}"

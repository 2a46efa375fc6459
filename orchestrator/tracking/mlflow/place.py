"""A run in MLflow with its nested runs, files, tables, traces, data sets, model and system metrics."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
from mlflow.tracing.client import TracingClient

from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tracking.evaluation_table import accuracies, table_of
from temper.orchestrator.tracking.metric_names import ACCURACY
from temper.orchestrator.tracking.mlflow.run import MlflowRun
from temper.orchestrator.tracking.mlflow.traces import SOURCE_RUN, sampled_rows, trace_of
from temper.orchestrator.tracking.notes import NOTE, merged_note
from temper.orchestrator.tracking.sending import Place
from temper.orchestrator.tracking.tracker import DataSet, Ended
from temper.orchestrator.tracking.tracking_error import RunDeletedError
from temper.orchestrator.tracking.unsent_rows import UnsentRows

STAGES_S = 30.0
"""Seconds between two batches of the nested runs."""
SECONDS = "temper.seconds"
"""The tag of a nested run that says how long its stage took, over all processes that worked on it."""
ENDED = "ended"
"""The file that says that a nested run has all of a stage that is done."""
TABLES = "mlflow.loggedArtifacts"
"""The tag of a run that lists its tables for MLflow's page of evaluations."""
TRACES_AT_ONCE = 100


class MlflowPlace(Place):
    """A run at one server. With `stages` each stage has a nested run; `system_s` 0 watches no machine."""

    def __init__(
        self,
        uri: str,
        *,
        name: str,
        experiment: str,
        metrics: Path,
        memory: Path,
        artifacts: Path,
        traces: int,
        stages: bool,
        registered: str,
        system_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._make = partial(MlflowRun, uri, experiment=experiment, metrics=metrics, artifacts=artifacts, say=say)
        self._run = self._make(name=name, memory=memory)
        self._client = self._run.client
        self._uri = uri
        self._root = metrics.absolute().parent
        self._memory = memory
        self._traces = traces
        self._nested: dict[str, _Nested] | None = {} if stages else None
        self._sent_stages = 0.0
        self._registered = registered
        self._system_s = system_s
        self._monitor: Any = None
        self._say = say
        self._orders: dict[str, int] = {}
        """The order of the evaluation of each table that was stored."""

    @property
    def is_new(self) -> bool:
        """Whether the run was created by the last `connect`."""
        return self._run.is_new

    def connect(self) -> UnsentRows:
        return self._run.connect()

    def require_there(self) -> None:
        self._run.require_there()

    def send_rows(self, rows: Sequence[MetricsRow]) -> None:
        self._run.send_rows(rows)

    def send_params(self, values: dict[str, str]) -> None:
        self._run.send_params(values)

    def describe(self, note: str) -> None:
        """Deliver the description, below the text that people have written there."""
        there = self._client.get_run(self._run.id).data.tags.get(NOTE, "")
        page = f"#/experiments/{self._run.experiment_id}/runs/{self._run.id}"
        file = f"get-artifact?run_uuid={self._run.id}&path="
        self._run.send_tags({NOTE: merged_note(there, note, page=page, file=file)})

    def store(self, path: Path) -> None:
        """Deliver a file to its place in the run's folder, and of an evaluation a table and its accuracies too."""
        path = path.absolute()
        folder = path.parent
        place = folder.relative_to(self._root).as_posix() if folder.is_relative_to(self._root) else "."
        self._client.log_artifact(self._run.id, str(path), artifact_path=None if place == "." else place)
        if path.suffix == ".json" and folder == self._root / "eval":
            self._store_evaluation(path)

    def store_episodes(self, path: Path) -> None:
        """Deliver episodes of a file of trajectories as traces, once."""
        if self._traces == 0 or not path.exists():
            return
        ended, record = path.stat().st_mtime, self._memory / f"{self._run.id}.traced"
        done = f"{path.name} {ended}"
        if record.exists() and done in record.read_text(encoding="utf-8").splitlines():
            return
        client: Any = TracingClient(self._uri)
        for number, row in sampled_rows(path, self._traces):
            experiment = self._run.experiment_id
            info, spans = trace_of(row, number, ended=ended, experiment=experiment, run=self._run.id, file=path.name)
            client.start_trace(info)
            client.log_spans(experiment, spans)
        with record.open("a", encoding="utf-8") as file:
            file.write(done + "\n")

    def stage(self, name: str, params: dict[str, str], seconds: float | None, data: Sequence[DataSet]) -> None:
        """Begin, continue or end the nested run of a stage, and tell the data that the stage reads."""
        ended = self._memory / "stages" / name / ENDED
        if self._nested is not None and (seconds is None or not ended.exists()):
            ended.unlink(missing_ok=True)
            run = self._make(name=name, memory=ended.parent, parent=self._run)
            known = self._nested.setdefault(name, _Nested(run))
            known.params, known.data, known.seconds, known.due = params, data, seconds, True
        self._log_data(self._run.id, data)

    def register(self, model: Path, facts: dict[str, str]) -> None:
        """Make a checkpoint the newest version of a registered model, by its path; once for each run and checkpoint."""
        if not self._registered:
            return
        name, run_id = self._registered, self._run.id
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        found = self._client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
        known = next((version for version in found if version.source == str(model)), None)
        version = known or self._client.create_model_version(name, source=str(model), run_id=run_id, tags=facts)
        self._client.set_registered_model_alias(name, "newest", version.version)

    def finish_batch(self, *, complete: bool, last: bool) -> None:
        """Send the nested runs, delete the runs that this one replaces, keep the system metrics going."""
        if last or monotonic() >= self._sent_stages + STAGES_S:
            self._sent_stages = monotonic()
            for name, nested in list((self._nested or {}).items()):
                try:
                    self._send_nested(name, nested)
                except RunDeletedError as error:  # the run itself has all its metrics
                    self._say(f"tracking: {name}: {error}")
                    self._drop_nested(name)
        if complete:
            self._forget_traces()
            self._run.delete_replaced()
        if self._system_s and not last:
            self._watch()

    def end(self, ended: Ended) -> None:
        """End the nested runs of the stages that are not done, the run and the system metrics."""
        for name, nested in list((self._nested or {}).items()):
            if nested.unsent is not None:
                with suppress(RunDeletedError):
                    nested.run.end(ended.value)
            self._drop_nested(name)
        self._run.end(ended.value)
        if self._monitor is not None:
            self._monitor.finish()

    def _store_evaluation(self, path: Path) -> None:
        run_id = self._run.id
        result = json.loads(path.read_text(encoding="utf-8"))
        answers = self._root / "trajectories" / f"eval-{result['label']}.jsonl" if self._traces else None
        table = f"eval/{path.stem}.table.json"
        self._client.log_dict(run_id, table_of(result, answers), table)
        self._orders[table] = result["order"]
        tags = self._client.get_run(run_id).data.tags
        known = {one["path"] for one in json.loads(tags.get(TABLES, "[]"))} | {table}
        newest = sorted(known, key=lambda one: -self._orders.get(one, 0))  # the page opens on the first
        self._run.send_tags({TABLES: json.dumps([{"path": one, "type": "table"} for one in newest])})
        values = {f"{ACCURACY}/{env}": value for env, value in accuracies(result).items()}
        lacking = {name: value for name, value in values.items() if result["order"] not in self._steps(name)}
        self._run.send_values(lacking, step=result["order"], time=path.stat().st_mtime)

    def _steps(self, name: str) -> set[int]:
        """Return the steps at which a metric has a value: one sent again with another time would be a second."""
        return {metric.step for metric in self._client.get_metric_history(self._run.id, name)}

    def _log_data(self, run_id: str, data: Sequence[DataSet]) -> None:
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
            self._client.log_inputs(run_id, datasets=inputs)

    def _send_nested(self, name: str, nested: "_Nested") -> None:
        if nested.unsent is None or nested.unsent.is_cut():
            if nested.unsent is not None:
                nested.unsent.close()
            nested.unsent = nested.run.connect()
            nested.due = True
        nested.unsent.send(nested.run.send_rows, say=self._say)
        if nested.due:
            nested.due = False
            nested.run.send_params(nested.params)
            self._log_data(nested.run.id, nested.data)
        nested.run.delete_replaced()
        if nested.seconds is not None:
            nested.run.send_tags({SECONDS: f"{nested.seconds:.1f}"})
            nested.run.end("FINISHED")
            (self._memory / "stages" / name / ENDED).touch()
            self._drop_nested(name)

    def _drop_nested(self, name: str) -> None:
        assert self._nested is not None
        if (unsent := self._nested.pop(name).unsent) is not None:
            unsent.close()

    def _forget_traces(self) -> None:
        """Delete the traces of the runs that this one replaces, which would outlive them."""
        for old in self._run.replaced if self._traces else ():
            query = f"metadata.`{SOURCE_RUN}` = '{old}'"
            search = partial(self._client.search_traces, filter_string=query, max_results=TRACES_AT_ONCE)
            while found := search(locations=[self._run.experiment_id], include_spans=False):
                ids = [trace.info.trace_id for trace in found]
                self._client.delete_traces(self._run.experiment_id, trace_ids=ids)

    def _watch(self) -> None:
        """Start MLflow's monitor of this machine, again after an outage, which ends it, or for another run."""
        thread = None if self._monitor is None else self._monitor._process
        if thread is not None and thread.is_alive() and self._monitor._run_id == self._run.id:
            return
        self._monitor = SystemMetricsMonitor(
            self._run.id, sampling_interval=self._system_s, resume_logging=True, tracking_uri=self._uri
        )
        self._monitor.start()


@dataclass(slots=True)
class _Nested:
    """The nested run of a stage: `seconds` is the stage's time if it is done."""

    run: MlflowRun
    params: dict[str, str] = field(default_factory=dict)
    data: Sequence[DataSet] = ()
    seconds: float | None = None
    due: bool = False
    """Whether settings and data have to be sent."""
    unsent: UnsentRows | None = None

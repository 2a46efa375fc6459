"""Files of a run in MLflow: as they are, and where MLflow has a page for what is in them, there too."""

import json
from pathlib import Path
from typing import Any

from mlflow.tracing.client import TracingClient

from temper.orchestrator.tracking.evaluation_table import accuracies, table_of
from temper.orchestrator.tracking.metric_names import ACCURACY
from temper.orchestrator.tracking.mlflow.batches import Batches
from temper.orchestrator.tracking.mlflow.episodes import episode_of, sampled_rows
from temper.orchestrator.tracking.mlflow.traces import SOURCE_RUN, trace_of

TABLES = "mlflow.loggedArtifacts"
"""The tag of a run that lists its tables, so that MLflow's page of evaluations finds them."""
TRACES_AT_ONCE = 100


class Files:
    """Stores files with a run, at the places where they lie under `root`."""

    def __init__(self, client: Any, batches: Batches, *, root: Path, traces: int) -> None:
        """`traces` is how many episodes of each file of trajectories become traces."""
        self._client = client
        self._batches = batches
        self._root = root
        self._count = traces
        self._tracing: Any = None
        self._orders: dict[str, int] = {}
        """The tables that were stored, each with the order of its evaluation."""

    def store(self, path: Path, *, run_id: str) -> None:
        """Deliver a file; of an evaluation a table and its accuracies too."""
        path = path.absolute()
        folder = path.parent
        place = folder.relative_to(self._root).as_posix() if folder.is_relative_to(self._root) else "."
        self._client.log_artifact(run_id, str(path), artifact_path=None if place == "." else place)
        if path.suffix == ".json" and folder == self._root / "eval":
            self._store_evaluation(path, run_id)

    def _store_evaluation(self, path: Path, run_id: str) -> None:
        result = json.loads(path.read_text(encoding="utf-8"))
        answers = self._root / "trajectories" / f"eval-{result['label']}.jsonl" if self._count else None
        table = f"eval/{path.stem}.table.json"
        self._client.log_dict(run_id, table_of(result, answers), table)
        tags = self._client.get_run(run_id).data.tags
        self._orders[table] = result["order"]
        known = {one["path"]: one for one in json.loads(tags.get(TABLES, "[]"))} | {
            table: {"path": table, "type": "table"}
        }
        newest = sorted(known, key=lambda path: -self._orders.get(path, 0))  # the page opens on the first
        self._batches.tags(run_id, {TABLES: json.dumps([known[path] for path in newest])})
        values = {
            name: value
            for env, value in accuracies(result).items()
            if result["order"] not in self._steps(run_id, name := f"{ACCURACY}/{env}")
        }
        self._batches.values(run_id, values, step=result["order"], time=path.stat().st_mtime)

    def _steps(self, run_id: str, name: str) -> set[int]:
        """Return the steps at which a metric has a value: one sent again with another time would be a second."""
        return {metric.step for metric in self._client.get_metric_history(run_id, name)}

    def store_episodes(self, path: Path, *, experiment: str, run_id: str, record: Path) -> None:
        """Deliver episodes of a file of trajectories as traces, once: `record` names the files of which it was done."""
        if self._count == 0 or not path.exists():
            return
        ended = path.stat().st_mtime
        done = f"{path.name} {ended}"
        if record.exists() and done in record.read_text(encoding="utf-8").splitlines():
            return
        self._tracing = self._tracing or TracingClient(self._client.tracking_uri)
        for place, row in sampled_rows(path, self._count):
            episode = episode_of(row, place, ended=ended)
            info, spans = trace_of(episode, experiment=experiment, run=run_id, file=path.name)
            self._tracing.start_trace(info)
            self._tracing.log_spans(experiment, spans)
        with record.open("a", encoding="utf-8") as file:
            file.write(done + "\n")

    def forget_traces(self, experiment: str, run_id: str) -> None:
        """Delete the traces of a run, which would outlive it."""
        while found := self._client.search_traces(
            locations=[experiment],
            filter_string=f"metadata.`{SOURCE_RUN}` = '{run_id}'",
            max_results=TRACES_AT_ONCE,
            include_spans=False,
        ):
            self._client.delete_traces(experiment, trace_ids=[trace.info.trace_id for trace in found])

"""A run in trackio's local store. The home of trackio. Nothing is sent over a network."""

import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tracking.backend import Backend, RunStatus
from temper.orchestrator.tracking.metric_names import display_values
from temper.orchestrator.tracking.sinks.sink import SinkRun, find_accuracies, strip_links
from temper.orchestrator.tracking.unsent_rows import UnsentRows, load_identity

EVENT = "event"
"""Name of the texts about the run's events."""
NOTE = "description"


def make_trackio_sink(run: SinkRun) -> "TrackioSink":
    """Return the backend of a run. trackio reads its folder from the environment when imported."""
    os.environ |= {"TRACKIO_DIR": run.store, "GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):  # they would send the run to a server
        os.environ.pop(name, None)
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    return TrackioSink(run, library=trackio, storage=SQLiteStorage)


class TrackioSink(Backend):
    """One run in a project. `<id>.sent` counts the stored rows."""

    def __init__(self, run: SinkRun, *, library: Any, storage: Any) -> None:
        self.run = run
        self._library = library
        self._storage = storage
        self._id = ""
        self._config: dict[str, str] = {}
        self._note = ""
        self.address = f"in {run.store}; show it with `TRACKIO_DIR={run.store} trackio show --project {run.project}`"

    def connect(self) -> UnsentRows:
        """Find the run by its id. It restarts if it was deleted, or if the file lost stored rows."""
        self._id = load_identity(self.run.state_dir).mark
        record = self.run.state_dir / f"{self._id}.sent"
        unsent = UnsentRows(self.run.metrics, record)
        if record.exists() and (unsent.has_lost_rows() or not self._is_there()):
            if self._is_there() and not self._storage.delete_run(self.run.project, self.run.name, run_id=self._id):
                raise OSError(f"trackio can't delete the run {self._id} of {self.run.project}")
            unsent.close()
            record.unlink()
            unsent = UnsentRows(self.run.metrics, record)
        return unsent

    def send_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Write rows with their steps and times. Known rows, by stage, step and time, are skipped."""
        entries: list[tuple[str, int, float, dict[str, Any]]] = []
        for row in rows:
            name = f"{row.stage}/{row.step}/{row.time}"
            if row.event is not None:
                text = uuid.uuid5(uuid.NAMESPACE_OID, row.event_line).hex  # distinguishes events of one millisecond
                entries.append((f"{name}/{EVENT}/{text}", row.step, row.time, {EVENT: row.event_line}))
            elif values := display_values(row):
                entries.append((name, row.step, row.time, values))
            order, accuracy = find_accuracies(row, self.run.root)
            if accuracy:
                entries.append((f"{name}/accuracy", order, row.time, accuracy))
        self._write(entries)

    def send_params(self, values: dict[str, str]) -> None:
        """Keep the configuration, which is written with the rows and at the end."""
        self._config = dict(values)

    def describe(self, note: str) -> None:
        """Keep the description until the end, since trackio keeps every version."""
        self._note = strip_links(note)

    def store(self, path: Path) -> None:
        """Store a file as an artifact version of the run. An unchanged file adds no version."""
        target = self.run.relative_path(path)
        run = self._library.Run(None, self.run.project, None, name=self.run.name, run_id=self._id)
        try:
            run.log_artifact(path, name="-".join((self.run.name, *target.parts)), type="file")
        finally:
            run.finish()

    def end(self, ended: RunStatus) -> None:
        """Write the description, once per version, and the configuration."""
        when = datetime.now(UTC).timestamp()
        if self._note:
            name = uuid.uuid5(uuid.NAMESPACE_OID, self._note).hex
            self._write([(f"note/{name}", 0, when, {NOTE: self._library.Markdown(self._note)._to_dict()})])

    def _is_there(self) -> bool:
        return any(record["id"] == self._id for record in self._storage.get_run_records(self.run.project))

    def _write(self, entries: Sequence[tuple[str, int, float, dict[str, Any]]]) -> None:
        if entries:
            names, steps, times, values = zip(*entries, strict=True)
            self._storage.bulk_log(
                self.run.project,
                self.run.name,
                list(values),
                steps=list(steps),
                timestamps=[datetime.fromtimestamp(when, UTC).isoformat() for when in times],
                config=self._config,
                log_ids=[f"{self._id}/{name}" for name in names],
                run_id=self._id,
            )

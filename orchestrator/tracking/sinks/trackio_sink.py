"""A run in trackio's store of files. The home of trackio: nothing of it is sent anywhere."""

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trackio
from trackio.sqlite_storage import SQLiteStorage

from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tracking.remembered import remembered
from temper.orchestrator.tracking.sinks.sink import SinkRun, accuracies_of, shown_values, without_links
from temper.orchestrator.tracking.tracker import Ended
from temper.orchestrator.tracking.unsent_rows import UnsentRows

EVENT = "event"
"""The name of the texts that say what was done to a run."""
NOTE = "description"


class TrackioSink:
    """One run in a project. What was sent stands in `<id>.sent` in the sink's folder, as soon as it is in the store."""

    def __init__(self, run: SinkRun, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        self._id = ""
        self._config: dict[str, str] = {}
        self._note = ""

    @property
    def where(self) -> str:
        """Where the run lies, and how it is seen."""
        return (
            f"in {self._run.store}; `TRACKIO_DIR={self._run.store} trackio show --project {self._run.project}` shows it"
        )

    def connect(self) -> UnsentRows:
        """Find the run by its id; where rows that it has were cut off the file, or it was deleted, it begins anew."""
        memory, known = Path(self._run.memory), remembered(Path(self._run.memory))
        self._id = known.mark
        record = memory / f"{self._id}.sent"
        unsent = UnsentRows(Path(self._run.metrics), record)
        if record.exists() and (unsent.is_cut() or not self._is_there()):
            if self._is_there() and not SQLiteStorage.delete_run(self._run.project, self._run.name, run_id=self._id):
                raise OSError(f"trackio does not delete the run {self._id} of {self._run.project}")
            record.unlink()
            unsent = UnsentRows(Path(self._run.metrics), record)
        return unsent

    def send_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Write rows with their steps and times. One that is there already, by its stage, step and time, is left alone."""
        entries: list[tuple[str, int, float, dict[str, Any]]] = []
        for row in rows:
            name = f"{row.stage}/{row.step}/{row.time}"
            if row.event is not None:
                text = uuid.uuid5(uuid.NAMESPACE_OID, row.event_line).hex  # two of one millisecond are two
                entries.append((f"{name}/{EVENT}/{text}", row.step, row.time, {EVENT: row.event_line}))
            elif values := shown_values(row):
                entries.append((name, row.step, row.time, values))
            order, accuracy = accuracies_of(row, self._run.root)
            if accuracy:
                entries.append((f"{name}/accuracy", order, row.time, accuracy))
        self._write(entries)

    def send_params(self, values: dict[str, str]) -> None:
        """Take the configuration; it is written with the rows, and at the end."""
        self._config = dict(values)

    def describe(self, note: str) -> None:
        """Take the description; it is written at the end, since trackio keeps each that was ever written."""
        self._note = without_links(note)

    def store(self, path: Path) -> None:
        """Keep a file as a version of an artifact of the run; one that did not change is no new version."""
        place = self._run.place_of(path)
        run = trackio.Run(None, self._run.project, None, name=self._run.name, run_id=self._id)
        try:
            run.log_artifact(path, name="-".join((self._run.name, *place.parts)), type="file")
        finally:
            run.finish()

    def end(self, ended: Ended) -> None:
        """Write the description, once for each that there was, and the configuration."""
        when = datetime.now(UTC).timestamp()
        if self._note:
            name = uuid.uuid5(uuid.NAMESPACE_OID, self._note).hex
            self._write([(f"note/{name}", 0, when, {NOTE: trackio.Markdown(self._note)._to_dict()})])

    def _is_there(self) -> bool:
        return any(record["id"] == self._id for record in _records(self._run.project))

    def _write(self, entries: Sequence[tuple[str, int, float, dict[str, Any]]]) -> None:
        if entries:
            names, steps, times, values = zip(*entries, strict=True)
            SQLiteStorage.bulk_log(
                self._run.project,
                self._run.name,
                list(values),
                steps=list(steps),
                timestamps=[datetime.fromtimestamp(when, UTC).isoformat() for when in times],
                config=self._config,
                log_ids=[f"{self._id}/{name}" for name in names],
                run_id=self._id,
            )


def _records(project: str) -> list[dict[str, str | None]]:
    found: list[dict[str, str | None]] = SQLiteStorage.get_run_records(project)
    return found

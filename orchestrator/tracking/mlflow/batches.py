"""Rows and parameters to one run of MLflow, in as few calls as it allows; what it refuses is said once and left out."""

import math
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tracking.metric_names import shown_name
from temper.orchestrator.tracking.tracking_error import first_line

AT_ONCE = {"metrics": 1000, "params": 100, "tags": 100}
"""What MLflow takes in one call."""
LONGEST_VALUE = 6000
REJECTED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "MALFORMED_REQUEST")
"""MLflow's answers to a request that will never succeed; anything else is worth another try."""


class Batches:
    """Sends to the runs of one server. `check` is called where it refuses, and raises where the run itself is gone."""

    def __init__(self, client: Any, uri: str, *, check: Callable[[], None], say: Callable[[str], None]) -> None:
        self._client = client
        self._uri = uri
        self._check = check
        self._say = say
        self._refused: set[str] = set()

    def rows(self, run_id: str, rows: Sequence[MetricsRow], *, of: str | None) -> None:
        """Deliver rows; `of` names the stage of which the run is, where it is one."""
        self._log(run_id, "metrics", [metric for row in rows for metric in _metrics(row, of)])
        self._log(run_id, "tags", [_event(row) for row in rows if row.event is not None])

    def params(self, run_id: str, values: dict[str, str]) -> None:
        """Deliver parameters that the run does not have."""
        self._log(run_id, "params", [Param(name, value) for name, value in values.items()])

    def tags(self, run_id: str, values: dict[str, str]) -> None:
        """Deliver tags, in the place of those of their names."""
        self._log(run_id, "tags", [RunTag(name, value) for name, value in values.items()])

    def values(self, run_id: str, values: dict[str, float], *, step: int, time: float) -> None:
        """Deliver metrics of a step, under these names, with their time in seconds since 1970."""
        known = {name: value for name, value in values.items() if math.isfinite(value)}
        self._log(run_id, "metrics", [Metric(name, value, round(time * 1000), step) for name, value in known.items()])

    def _log(self, run_id: str, what: str, entries: list[Any]) -> None:
        for start in range(0, len(entries), AT_ONCE[what]):
            self._log_batch(run_id, what, entries[start : start + AT_ONCE[what]])

    def _log_batch(self, run_id: str, what: str, entries: list[Any]) -> None:
        """Make one call; where MLflow refuses it, the entries that it refuses are found, said once each, and left out."""
        try:
            self._client.log_batch(run_id, **{what: entries})
        except MlflowException as error:
            if error.error_code not in REJECTED:
                raise
            self._check()
            if len(entries) > 1:
                middle = len(entries) // 2
                self._log_batch(run_id, what, entries[:middle])
                self._log_batch(run_id, what, entries[middle:])
            elif entries[0].key not in self._refused:
                self._refused.add(entries[0].key)
                self._say(f"tracking: {self._uri} refuses {entries[0].key!r}: {first_line(error)}")


def _metrics(row: MetricsRow, of: str | None) -> list[Metric]:
    """Return a row's values that are numbers, with the time of the row."""
    time_ms = round(row.time * 1000)
    return [
        Metric(shown_name(row.stage, name, of=of), value, time_ms, row.step)
        for name, value in row.values.items()
        if math.isfinite(value)
    ]


def _event(row: MetricsRow) -> RunTag:
    """Return an event under its millisecond and what it says: two of one millisecond are two, one that is sent again is one."""
    text = uuid.uuid5(uuid.NAMESPACE_OID, row.event_line).hex[:8]
    return RunTag(f"event.{round(row.time * 1000)}.{text}", row.event_line[:LONGEST_VALUE])

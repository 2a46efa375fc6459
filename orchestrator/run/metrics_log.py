"""The metrics file of a run: `metrics.jsonl`, one flat object a line, each (stage, step) once, with events between them."""

import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temper.orchestrator.run.folder import append_line, parse_lines, sync, write_atomically

HEAD = ("stage", "step", "time")
EVENT = "event"
UNWRITTEN = "unwritten"
ALARM = "alarm"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRow:
    """Metrics of one step. `time` is in seconds since 1970. A non-finite value is NaN.

    A row with an `event` has no values. It records a change of the run after that step, with `kind` and `what`.
    """

    stage: str
    step: int
    time: float
    values: dict[str, float] = field(default_factory=dict)
    event: dict[str, Any] | None = None

    @property
    def is_measured(self) -> bool:
        return self.event is None

    def is_step_of(self, stage: str) -> bool:
        return self.stage == stage and self.is_measured

    @property
    def is_alarm(self) -> bool:
        return self.event is not None and self.event["kind"] == ALARM

    @property
    def is_of_its_step(self) -> bool:
        """Whether the row belongs to its step alone and is removed if the step is repeated."""
        return self.event is None or self.event["kind"] in (ALARM, UNWRITTEN)

    @property
    def event_text(self) -> dict[str, str]:
        """The values of the event as text. A pair is old and new value. Empty without an event."""
        what = self.event["what"] if self.event else {}
        return {name: " -> ".join(map(str, v)) if isinstance(v, list) else str(v) for name, v in what.items()}

    @property
    def event_line(self) -> str:
        """The event in one line; "" without an event."""
        what = ", ".join(f"{name} {value}" for name, value in self.event_text.items())
        return f"{self.stage} after step {self.step}: {self.event['kind']} {what}" if self.event else ""

    @property
    def key(self) -> tuple[str, int]:
        return self.stage, self.step


class MetricsLog:
    """Appends rows to a metrics file. Opening it removes a torn last line of a killed process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: set[tuple[str, int]] = set()
        self._keep(lambda row: True)

    def append(self, stage: str, step: int, metrics: dict[str, float]) -> None:
        """Add the row of a step in place of an earlier one. Raise `ValueError` for a metric named like a head field."""
        clash = [name for name in (*HEAD, EVENT) if name in metrics]
        if clash:
            raise ValueError(f"metric {clash[0]!r} has the name of a head field; rename it")
        values = {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        line = _line(stage, step, values)
        if (stage, step) in self._keys:  # in one write, so that a reader finds one of both
            self._keep(lambda row: row.event is not None or row.key != (stage, step), then=line)
        else:
            append_line(self._path, line)
        self._keys.add((stage, step))

    def append_next(self, stage: str, metrics: dict[str, float]) -> None:
        """Add a row of metrics of a start. Its step is the number of such rows before it."""
        self.append(stage, sum(name == stage for name, _ in self._keys), metrics)

    def event(self, stage: str, step: int, kind: str, what: dict[str, Any]) -> None:
        """Add an event after a step of a stage."""
        append_line(self._path, _line(stage, step, {EVENT: {"kind": kind, "what": what}}))

    def truncate(self, stage: str, after_step: int) -> None:
        """Remove the rows of `stage` beyond `after_step`, and events that belong to these steps alone."""
        self._keep(lambda row: row.stage != stage or row.step <= after_step or not row.is_of_its_step)

    def sync(self) -> None:
        sync(self._path)

    def _keep(self, wanted: Callable[[MetricsRow], bool], *, then: str | None = None) -> None:
        """Keep the rows that are `wanted`, followed by the line `then`. An unchanged file is not rewritten."""
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        rows = parse_lines(text, self._path, parse_row)
        kept = [(line, row) for line, row in rows if wanted(row)]
        self._keys = {row.key for _, row in kept if row.is_measured}
        if len(kept) < len(rows) or then is not None or (text and not text.endswith("\n")):
            lines = [line for line, _ in kept] + ([] if then is None else [then])
            write_atomically(self._path, "".join(line + "\n" for line in lines))


def _line(stage: str, step: int, fields: dict[str, Any]) -> str:
    return json.dumps({"stage": stage, "step": step, "time": round(time.time(), 3)} | fields, allow_nan=False)


def read_metrics(path: Path) -> list[MetricsRow]:
    """Read the rows of a metrics file in order; [] without a file. A torn last line is skipped.

    Raise `ValueError` with file and line number for an invalid line.
    """
    if not path.exists():
        return []
    return [row for _, row in parse_lines(path.read_text(encoding="utf-8"), path, parse_row)]


def step_rows(rows: Iterable[MetricsRow], stage: str) -> list[MetricsRow]:
    return [row for row in rows if row.is_step_of(stage)]


def parse_row(line: str) -> MetricsRow:
    try:
        fields = json.loads(line)
        stage, step, when = (fields.pop(name) for name in HEAD)
        event = fields.pop(EVENT, None)
        values = {name: math.nan if value is None else float(value) for name, value in fields.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no metrics row: {line[:80]!r}") from error
    return MetricsRow(stage=stage, step=step, time=when, values=values, event=event)

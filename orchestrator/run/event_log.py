"""The event log of a run: `event_log.jsonl`, one flat object a line, with each event of each ticket of the loop's stages.

    {"stage": "rl", "ticket": 7, "event": "admitted", "env": "math", "index": 7, "version": 3, "time": 1700000000.0}
    {... "event": "reissued", "why": "restored"}            issued again after a restart of the run or of its worker
    {... "event": "reissued", "why": "turns_lost"}          sampled again after the loss of its turns with a machine
    {... "event": "finished", "answers": 8, "failed": 0, "tokens": 512}
    {... "event": "trained", "step": 4}                     or "dropped" with its `why`, or "failed" with "environment 3"
    {"stage": "rl", "event": "step", "step": 4, "issued": 9, "trained": 8, "dropped": 0, "failed": 0, "in_flight": 1, ...}
    {"stage": "rl", "event": "continued", "step": 4, ...}   a restart; rows after that step were removed

A `step` row has the totals of the stage so far: issued = trained + dropped + failed + in_flight.
"""

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import get_args

from temper.orchestrator.loop.ticket_log import TicketEvent, Totals
from temper.orchestrator.run.folder import RowFile, parse_lines, write_atomically

EVENTS: tuple[str, ...] = get_args(TicketEvent)
TOTALS = tuple(field.name for field in fields(Totals))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One line. A field that the event does not have is None.

    `failed` counts the failed answers of a `finished` group. In a `step` row it counts failed tickets.
    """

    stage: str
    event: TicketEvent
    time: float
    ticket: int | None = None
    step: int | None = None
    env: str | None = None
    index: int | None = None
    version: int | None = None
    why: str | None = None
    answers: int | None = None
    tokens: int | None = None
    failed: int | None = None
    issued: int | None = None
    trained: int | None = None
    dropped: int | None = None
    in_flight: int | None = None

    @property
    def totals(self) -> Totals:
        """The totals of a `step` row. Raise `ValueError` for any other row."""
        values = asdict(self)
        missing = [name for name in TOTALS if values[name] is None]
        if missing:
            raise ValueError(f"a row {self.event!r} of the event log has no {', '.join(missing)}")
        return Totals(**{name: values[name] for name in TOTALS})


class EventLog:
    """Writes the rows of one stage. No other process writes the file meanwhile."""

    def __init__(self, path: Path, stage: str, *, clock: Callable[[], float] = time.time) -> None:
        """Open the event log. Remove a torn last line of a killed process."""
        self._path = path
        self._file = RowFile(path)
        self._stage = stage
        self._clock = clock
        self.rows = 0
        self._keep()

    def cut(self, rows: int) -> int:
        """Keep the first `rows` rows of this stage. Return how many of these are missing."""
        self._keep(rows)
        return rows - self.rows

    def sync(self) -> None:
        self._file.sync()

    def add(self, event: TicketEvent, values: Mapping[str, int | str]) -> None:
        """Write an event of a ticket, or the totals of a step."""
        rest: dict[str, int | str | float] = {"event": event, **values, "time": round(self._clock(), 3)}
        self._file.append(_head(self._stage) + json.dumps(rest)[1:])
        self.rows += 1

    def _keep(self, most: float = math.inf) -> None:
        """Keep the rows of other stages, and the first `most` of this one.

        A long run has millions of rows. They are not parsed, and mostly the end of the file is removed.
        """
        self._file.close()  # the file may be replaced
        self.rows = end = 0
        if not self._path.exists():
            return
        behind, cut, mine = [], False, _head(self._stage).encode()
        with self._path.open("rb") as file:
            for line in file:
                own = line.startswith(mine)
                if not line.endswith(b"\n") or (own and self.rows >= most):
                    cut = True
                    continue
                self.rows += own
                if cut:
                    behind.append(line)
                else:
                    end += len(line)
        if behind:
            with self._path.open("rb") as file:
                write_atomically(self._path, (file.read(end) + b"".join(behind)).decode())
        elif cut:
            os.truncate(self._path, end)


def copy_event_log(source: Path, target: Path, *, rows: Mapping[str, int | None]) -> None:
    """Copy the rows of stages to another run: the first `rows` of each, or all for None.

    Raise `ValueError` with file and line number for an invalid line.
    """
    copied: Counter[str] = Counter()
    kept: list[str] = []
    text = source.read_text(encoding="utf-8") if source.exists() else ""
    for line, row in parse_lines(text, source, parse_row):
        most = rows.get(row.stage, 0)
        if most is None or copied[row.stage] < most:
            kept.append(line + "\n")
        copied[row.stage] += 1
    if kept:
        write_atomically(target, "".join(kept))


def _head(stage: str) -> str:
    return f'{{"stage": {json.dumps(stage)}, '


def parse_row(line: str) -> EventRow:
    """Parse one line. Raise `ValueError` for an invalid one."""
    try:
        row = EventRow(**json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"no row of an event log: {line[:80]!r}") from error
    if row.event not in EVENTS:
        raise ValueError(f"no row of an event log: event {row.event!r} is none of {', '.join(EVENTS)}")
    return row

"""The process that reports a run to one more place: `python -m temper.orchestrator.tracking.sinks.process`.

Which run comes as the first line of its standard input, and then what it is told of it, a JSON object a line; rows it
reads from the metrics file itself. What it says is for people. Where its input ends before the run does, the driver is gone,
and so is this process, at once: the next one goes on with what was not sent.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from temper.orchestrator.tracking.sinks.sink import MakeSink, Sink, SinkRun
from temper.orchestrator.tracking.tracker import Ended
from temper.orchestrator.tracking.tracking_error import first_line
from temper.orchestrator.tracking.unsent_rows import UnsentRows

POLL_S = 1.0
"""How often the metrics file is looked at."""
LONGEST_PAUSE_S = 10.0
ROWS_AT_ONCE = 100


class Reporting:
    """What a sink has got and what it still has to get."""

    def __init__(self, sink: Sink, run: SinkRun, say: Callable[[str], None]) -> None:
        self._sink = sink
        self._name = run.sink
        self._metrics = run.metrics
        self._say = say
        self._unsent: UnsentRows | None = None
        self._params: dict[str, str] = {}
        self._note = ""
        self._files: dict[Path, bool] = {}
        """Those that were told, in order, and whether that was tried."""
        self._due: set[str] = set()
        """What of the configuration and the description has to be sent."""
        self._said: set[str] = set()

    def told(self, message: dict[str, Any]) -> None:
        """Take what the driver tells of the run."""
        if "params" in message:
            self._params |= message["params"]
            self._due.add("params")
        if "note" in message:
            self._note = message["note"]
            self._due.add("note")
        if "file" in message:
            self._files[Path(message["file"])] = False

    def send(self) -> None:
        """Send all that is there. Raises whatever the sink raises; the next call then connects again."""
        try:
            self._send()
        except Exception:
            self._unsent = None
            raise

    def _send(self) -> None:
        if self._unsent is None or self._unsent.is_cut():
            self._connect()
        assert self._unsent is not None
        if "params" in self._due:
            self._sink.send_params(self._params)
        if "note" in self._due:
            self._sink.describe(self._note)
        self._due.clear()
        while lines := self._unsent.next(ROWS_AT_ONCE):
            rows = self._unsent.rows(lines, say=self._say)
            self._unsent.offer(lines)
            self._sink.send_rows(rows)
            self._unsent.done(lines)
        for file in [file for file, tried in self._files.items() if not tried and file.exists()]:
            self._files[file] = True
            self._store(file)

    def _store(self, file: Path) -> None:
        """Deliver a file; rows do not wait for one that can't be stored."""
        try:
            self._sink.store(file)
        except Exception as error:  # whatever the sink's library raises
            self._say(f"tracking: {self._name} does not store {file.name} ({first_line(error)})")

    def end(self, ended: Ended) -> None:
        """End the run where it is."""
        self._sink.end(ended)

    def _connect(self) -> None:
        self._unsent = self._sink.connect()
        self._files = dict.fromkeys(self._files, False)
        if self._params:
            self._due.add("params")
        if self._note:
            self._due.add("note")
        if self._sink.where not in self._said:
            self._said.add(self._sink.where)
            self._say(f"tracking: {self._sink.where}")


def report(run: SinkRun, make: MakeSink, told: "queue.Queue[dict[str, Any]]", say: Callable[[str], None]) -> int:
    """Report a run until its end is told; returns the exit status, 1 where something could not be sent."""
    reporting = Reporting(make(run, say), run, say)
    ended: Ended | None = None
    pause_s, away = POLL_S, False
    while True:
        for message in _waited(told, 0.0 if ended else pause_s):
            if "end" in message:
                ended = Ended(message["end"])
            else:
                reporting.told(message)
        try:
            reporting.send()
            if ended:
                reporting.end(ended)
        except Exception as error:  # whatever the sink's library raises must not end the report of the run
            if not away:
                say(f"tracking: {run.sink} takes nothing ({first_line(error)}); the run goes on, metrics.jsonl has all")
            away, pause_s = True, min(2 * pause_s, LONGEST_PAUSE_S)
            if ended:
                return 1
        else:
            if away:
                say(f"tracking: {run.sink} takes what it is sent again")
            away, pause_s = False, POLL_S
            if ended:
                return 0


def _waited(told: "queue.Queue[dict[str, Any]]", seconds: float) -> list[dict[str, Any]]:
    """Return what was told by now; where that is nothing, what comes within the time."""
    found: list[dict[str, Any]] = []
    try:
        found.append(told.get(timeout=seconds) if seconds else told.get_nowait())
        while True:
            found.append(told.get_nowait())
    except queue.Empty:
        return found


def _read(told: "queue.Queue[dict[str, Any]]") -> None:
    """Pass on what the driver tells. Where its input ends before the run, even within a line, so does the process."""
    ended = False
    try:
        for line in sys.stdin:
            message = json.loads(line)
            ended = ended or "end" in message
            told.put(message)
    finally:
        if not ended:
            os._exit(1)  # from this thread: the other one may be in a call that does not return


def _maker(sink: str) -> MakeSink:
    """Return what makes a sink. Imported here: each has a library that takes seconds and need not be installed."""
    if sink == "wandb":
        from temper.orchestrator.tracking.sinks.wandb_sink import WandbSink

        return WandbSink
    from temper.orchestrator.tracking.sinks.trackio_sink import TrackioSink

    return TrackioSink


def main() -> int:
    """Report the run that standard input names; returns the exit status."""
    screen = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes where their warnings go
    run = SinkRun(**json.loads(sys.stdin.readline()))
    told: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(told,), name="told", daemon=True).start()
    try:
        make = _maker(run.sink)
    except ImportError as error:
        print(f"tracking: {run.sink} can't be imported ({first_line(error)}); the run goes on without", file=screen)
        return 1
    return report(run, make, told, lambda text: print(text, file=screen))


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.exit(status)

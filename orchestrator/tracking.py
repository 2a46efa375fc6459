"""Experiment tracking. The home of MLflow, which the rest of Temper sees as a `Tracker`.

Training never waits for the tracker: what is logged goes into a bounded queue that a thread of its own empties. While
the server is away the queue keeps everything in order and is sent when the server is back. `metrics.jsonl` holds all of
it in any case.
"""

import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow reads this one when it is imported

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

CAPACITY = 20_000
PARAMS_A_CALL = 100
LONGEST_PARAM = 6000
LONGEST_PAUSE_S = 10.0
REJECTED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "MALFORMED_REQUEST")
"""MLflow's answers to a request that will never succeed; anything else is worth another try."""


class Tracker(Protocol):
    """Where a run reports to. No call blocks for longer than it takes to queue, except `close`."""

    run_id: str | None
    """The run's id there; None until it is known."""

    def params(self, values: dict[str, str]) -> None:
        """The run's configuration."""
        ...

    def metrics(self, values: dict[str, float], step: int) -> None:
        """The metrics of one step. A name must not be used with the same step twice."""
        ...

    def artifact(self, path: Path) -> None:
        """A file to keep with the run, as it is when it is sent."""
        ...

    def close(self) -> None:
        """Send what is left, within a deadline, and end the run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One call, as queued; the time in ms is that of the call, so that sending again changes nothing."""

    time_ms: int
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    step: int = 0
    artifact: Path | None = None


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class MlflowTracker:
    """A run in MLflow: the server at `uri`, else at MLFLOW_TRACKING_URI, else a SQLite file in `local_dir`.

    With `run_id` an earlier run is continued; steps that it already has are not sent again. `say` gets the few
    messages for people.
    """

    def __init__(
        self,
        run_name: str,
        *,
        experiment: str,
        uri: str | None = None,
        run_id: str | None = None,
        local_dir: Path = Path("runs"),
        say: Callable[[str], None] = _to_stderr,
    ) -> None:
        for name, value in (("TIMEOUT", "5"), ("MAX_RETRIES", "0"), ("BACKOFF_FACTOR", "0")):
            os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
        for name in ("mlflow", "alembic"):  # their notes on a new database are no news of the run
            logging.getLogger(name).setLevel(logging.WARNING)
        self.uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{local_dir.absolute()}/mlflow.db"
        self.run_id = run_id
        """The run's id in MLflow; None until the server has been reached once."""
        self._session = _Session(self.uri, run_name=run_name, experiment=experiment, local_dir=local_dir)
        self._say = say
        self._queue: queue.Queue[Item | None] = queue.Queue(CAPACITY)
        self._lost = 0
        self._away = False
        self._closing = threading.Event()
        self._reached = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="tracker", daemon=True)
        self._thread.start()

    def params(self, values: dict[str, str]) -> None:
        items = list(values.items())
        for start in range(0, len(items), PARAMS_A_CALL):
            self._put(Item(time_ms=_now_ms(), params=dict(items[start : start + PARAMS_A_CALL])))

    def metrics(self, values: dict[str, float], step: int) -> None:
        self._put(Item(time_ms=_now_ms(), metrics=dict(values), step=step))

    def artifact(self, path: Path) -> None:
        self._put(Item(time_ms=_now_ms(), artifact=path))

    def reached(self, timeout_s: float) -> bool:
        """Wait until the server has been reached and `run_id` is known; False where it was not in time."""
        return self._reached.wait(timeout_s)

    def close(self, *, failed: bool = False, timeout_s: float = 15.0) -> None:
        """Send what is left for at most `timeout_s` seconds, then say how much could not be delivered."""
        self._session.status = "FAILED" if failed else "FINISHED"
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(timeout_s)
        lost = self._lost + self._thread.is_alive()
        while not self._queue.empty():
            lost += self._queue.get() is not None
        if lost:
            self._say(f"tracking: {lost} entries did not reach {self.uri}; metrics.jsonl holds all metrics")

    def _put(self, item: Item) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self._lost += 1

    def _send_all(self) -> None:
        """The thread: one item after the other, each until it is delivered, refused for good, or the end has come."""
        delivering = self._until_done(self._connect) and self.run_id is not None
        while delivering and (item := self._queue.get()) is not None:
            delivering = self._until_done(partial(self._session.send, item))
            self._lost += not delivering
        if delivering:
            self._until_done(self._session.end)

    def _connect(self) -> None:
        run_id = self._session.connect(self.run_id)
        if self.run_id is not None and run_id != self.run_id:
            self._say(f"tracking: {self.uri} has no run {self.run_id}; a new run is started there")
        self.run_id = run_id
        self._reached.set()

    def _until_done(self, call: Callable[[], None]) -> bool:
        """Call until it succeeds. False where the tracker is closing and the server is away."""
        pause_s = 0.5
        while True:
            try:
                call()
            except Exception as error:  # whatever the tracker's client raises must not end the run
                if isinstance(error, MlflowException) and error.error_code in REJECTED:
                    self._say(f"tracking: {self.uri} refused an entry: {_first_line(error)}")
                    self._lost += self.run_id is not None  # what the connection lost is still in the queue
                    return True
                self._went_away(error)
            else:
                self._came_back()
                return True
            last_try = self._closing.is_set()
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if last_try:
                return False

    def _went_away(self, error: Exception) -> None:
        if not self._away:
            self._say(
                f"tracking: {self.uri} can't be reached ({_first_line(error)}); the run goes on, metrics.jsonl has all"
            )
        self._away = True

    def _came_back(self) -> None:
        if self._away:
            self._say(f"tracking: {self.uri} is back; {self._queue.qsize()} entries are being sent")
        self._away = False


class _Session:
    """The calls to MLflow, all made by the tracker's thread."""

    def __init__(self, uri: str, *, run_name: str, experiment: str, local_dir: Path) -> None:
        self.status = "FINISHED"
        self._uri = uri
        self._run_name = run_name
        self._experiment = experiment
        self._local_dir = local_dir.absolute()
        self._run_id = ""
        self._resumed = False
        self._last_step: dict[str, int] = {}

    def connect(self, run_id: str | None) -> str:
        """Continue `run_id`, or create a run; returns its id."""
        if self._uri.startswith("sqlite:///"):
            self._local_dir.mkdir(parents=True, exist_ok=True)
        self._client: Any = MlflowClient(self._uri)
        self._resumed = run_id is not None and self._continue(run_id)
        if run_id is None or not self._resumed:
            run_id = str(self._client.create_run(self._experiment_id(), run_name=self._run_name).info.run_id)
        self._run_id = run_id
        return run_id

    def send(self, item: Item) -> None:
        """Deliver one item. Delivering it twice leaves one entry: time and value are the same."""
        if item.artifact is not None:
            self._client.log_artifact(self._run_id, str(item.artifact))
            return
        metrics = [
            Metric(name, value, item.time_ms, item.step)
            for name, value in item.metrics.items()
            if not self._resumed or item.step > self._last_step_of(name)
        ]
        params = [Param(name, value[:LONGEST_PARAM]) for name, value in item.params.items()]
        if metrics or params:
            self._client.log_batch(self._run_id, metrics=metrics, params=params)

    def end(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._run_id, status=self.status)

    def _continue(self, run_id: str) -> bool:
        """Mark an earlier run as running again; False where the server does not have it."""
        try:
            self._client.update_run(run_id, status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return True

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            local = self._uri.startswith("sqlite:")
            location = (self._local_dir / "mlartifacts").as_uri() if local else None
            return str(self._client.create_experiment(self._experiment, artifact_location=location))
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _last_step_of(self, name: str) -> int:
        """The last step that a continued run had of a metric when it was continued; -1 for none."""
        if name not in self._last_step:
            history = self._client.get_metric_history(self._run_id, name)
            self._last_step[name] = max((metric.step for metric in history), default=-1)
        return self._last_step[name]


def _now_ms() -> int:
    return int(time.time() * 1000)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]

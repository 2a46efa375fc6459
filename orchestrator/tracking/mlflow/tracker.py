"""MLflow as the tracker: what a run reports, sent by threads of its own so that training never waits.

    metrics.jsonl --rows not sent yet--> `tracker`       --> MLflow       what was sent: tracking/<id>.sent
    files ----------------------------> `tracker-files` --> MLflow       which run:     tracking/run.json

The file is the queue: a killed process loses nothing, and what an outage of any length held back is made up when the
server is there, by this process or by the next one. Where rows that were sent have been cut off the file, since a stage goes
on from a checkpoint, the run goes on in a new one of MLflow's that has what the file has: each (metric, step) once.
"""

import os
import queue
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from temper.orchestrator.tracking.data_set import DataSet
from temper.orchestrator.tracking.tracker import Ended
from temper.orchestrator.tracking.tracking_error import RunDeletedError, first_line, is_refusal

POLL_S = 10.0
"""How often new rows and files are sent: a batch costs MLflow's client little more than a row."""
LONGEST_PAUSE_S = 10.0
STAGES_S = 30.0
"""How often the nested runs of the stages get what is new."""
TRIES = 5
"""How often a call other than rows is made at a server that answers, before it is left out."""
USUAL_TRACES = 8
"""Episodes of each file of trajectories that a store in a file gets."""
STAGE_STEP = re.compile(r"(.+)-[0-9]+")
LOOK_S = 1.0
"""Seconds between two looks of the thread of the files at whether the tracker was connected, or never will be."""
SQLITE = "sqlite:///"
"""What the address of a store in a file begins with, in front of its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file on its way: itself, or a sample of the `episodes` in it."""

    path: Path
    episodes: bool = False

    def replaces(self, other: "File") -> bool:
        """Return whether both hold episodes of one stage: of the files that wait, the newest is shown."""
        return self.episodes and other.episodes and _stage(self.path) == _stage(other.path)


def _stage(path: Path) -> str:
    """Return the stage of a file STAGE-STEP, else the name: that of an evaluation may end in digits."""
    found = STAGE_STEP.fullmatch(path.stem)
    return path.stem if found is None else found[1]


def store_of(uri: str | None, local_dir: Path) -> str:
    """Return the store that is sent to: the one that is told, else that of the environment, else a file beside the runs."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{local_dir.absolute()}/mlflow.db"


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class MlflowTracker:
    """A run in MLflow: at the server `uri`, else at MLFLOW_TRACKING_URI, else in a SQLite file in `local_dir`.

    `metrics` is the run's metrics file, `memory` the folder in which the tracker keeps what it knows: with it the run stays
    one run there, however often its process dies. `say` gets the few messages for people. `traces` is how many episodes of
    each file of trajectories are shown, `registered` the name under which the model is registered, "" for none; where these
    are not told, a local store gets 8 and the run's name, a server neither. With `stages` each has a nested run.
    """

    def __init__(
        self,
        run_name: str,
        *,
        experiment: str,
        metrics: Path,
        memory: Path,
        uri: str | None = None,
        local_dir: Path = Path("runs"),
        traces: int | None = None,
        stages: bool = True,
        registered: str | None = None,
        say: Callable[[str], None] = _to_stderr,
    ) -> None:
        # Imported here: MLflow takes seconds, and most commands track nothing.
        from temper.orchestrator.tracking.mlflow.run import MlflowRun
        from temper.orchestrator.tracking.mlflow.stage_runs import StageRuns

        self.uri = store_of(uri, local_dir)
        here = self.uri.startswith(SQLITE)
        self._registered = registered if registered is not None else f"temper-{run_name}" if here else ""
        self.traces = traces if traces is not None else USUAL_TRACES if here else 0
        self._artifacts = local_dir.absolute() / "mlartifacts"
        self._say = say
        common = partial(MlflowRun, self.uri, experiment=experiment, metrics=metrics, say=say)
        self._run = common(name=run_name, memory=memory, traces=self.traces)
        self._stages = StageRuns(
            lambda name, folder: common(name=name, memory=folder, parent=self._run),
            memory=memory / "stages",
            artifacts=self._artifacts,
            say=say,
        )
        self._nested = stages
        self._sent_stages = 0.0
        self._told: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        """What the thread of the metrics has to send beside them."""
        self._beside: deque[Callable[[], None]] = deque()
        """The same in that thread, in the order in which it is sent."""
        self._tries = 0
        """How often the first of these has failed."""
        self._files: queue.SimpleQueue[File] = queue.SimpleQueue()
        self._ended = Ended.FAILED
        self._away = False
        self._refused: set[str] = set()
        """Why calls were left out, as already shown."""
        self._settled = False
        """Whether people need no last word: all is sent, or they know that the run was deleted."""
        self._files_tried = False
        """Whether each file was stored or refused since the tracker is closing."""
        self._files_lacking: tuple[File, ...] = ()
        """The files that were given and refused the last time that they were sent."""
        self._closing = threading.Event()
        self._connected = threading.Event()
        self._rows_thread = threading.Thread(target=self._send_rows, name="tracker", daemon=True)
        self._files_thread = threading.Thread(target=self._send_files, name="tracker-files", daemon=True)
        self._rows_thread.start()
        self._files_thread.start()

    def params(self, values: dict[str, str]) -> None:
        self._told.put(partial(self._run.send_params, values))

    def artifact(self, path: Path) -> None:
        self._files.put(File(path=path))

    def episodes(self, path: Path) -> None:
        self._files.put(File(path=path, episodes=True))

    def describe(self, note: str) -> None:
        self._told.put(partial(self._run.describe, note))

    def stage(
        self, name: str, params: dict[str, str], seconds: float | None = None, *, data: Sequence[DataSet] = ()
    ) -> None:
        self._told.put(partial(self._run.send_data, tuple(data)))
        if self._nested:
            self._told.put(partial(self._stages.tell, name, params, seconds, data=tuple(data)))

    def model(self, path: Path, facts: dict[str, str]) -> None:
        if self._registered:
            self._told.put(partial(self._run.register, self._registered, path, facts))

    def close(self, ended: Ended, *, timeout_s: float = 15.0) -> None:
        """Send what is left for at most `timeout_s` seconds, then say how much could not be delivered."""
        self._ended = ended
        self._closing.set()
        deadline = monotonic() + timeout_s
        for thread in (self._rows_thread, self._files_thread):
            thread.join(max(0.0, deadline - monotonic()))
        if not self._files_tried and self._connected.is_set():
            self._say(f"tracking: not every file reached {self.uri} in {timeout_s:.0f} s; they lie in the run's folder")
        elif names := ", ".join(dict.fromkeys(file.path.name for file in self._files_lacking)):
            self._say(
                f"tracking: {names} did not reach {self.uri}; the same command sends what lies in the run's folder"
            )
        if not self._settled:
            rows = self._run.unsent.count()
            what = f"{rows} rows of metrics.jsonl" if rows else "something beside the rows of metrics.jsonl"
            self._say(f"tracking: {what} did not reach {self.uri}; the same command sends them when it is there")

    def _send_rows(self) -> None:
        """Be the thread of the metrics."""
        try:
            self._send_until_the_end()
        finally:
            self._stages.let_go()
            self._run.unsent.close()

    def _send_until_the_end(self) -> None:
        """Send what is new until the end has come, or the run was deleted."""
        if not self._until_done(lambda: self._run.connect(self._artifacts)):
            return
        self._connected.set()
        last = False
        while not last:
            last = self._closing.is_set()  # before the look, so that nothing is missed
            if not self._until_done(self._run.send_rows):
                return
            self._beside += self._run.take_due()
            while not self._told.empty():
                self._beside.append(self._told.get())
            if last or monotonic() >= self._sent_stages + STAGES_S:
                self._beside.append(self._stages.send_rows)
                self._sent_stages = monotonic()
            if last:
                self._beside.append(partial(self._stages.end, self._ended.value))
            if not self._send_beside(last=last):
                return
            self._closing.wait(0.0 if last else POLL_S)
        self._settled = self._until_done(lambda: self._run.end(self._ended.value))

    def _send_beside(self, *, last: bool) -> bool:
        """Make the calls besides the rows up to one that fails, which is repeated after the next rows. At the `last` make all.

        A call that fails `TRIES` times at a server that answers is reported and left out. Return False if the run was deleted,
        or if the server is away at the last.
        """
        while self._beside:
            try:
                self._beside[0]()
            except RunDeletedError as error:
                return self._end_deleted(error)
            except Exception as error:  # whatever the tracker's client raises must not end the run
                try:
                    self._run.require_there()
                except RunDeletedError as deleted:
                    return self._end_deleted(deleted)
                except Exception:  # an outage, which costs no try
                    return not last
                self._tries += 1
                if self._tries < TRIES and not is_refusal(error):
                    if last:
                        continue
                    return True
                if (why := first_line(error)) not in self._refused:
                    self._refused.add(why)
                    self._say(f"tracking: {self.uri} refuses a request ({why}); metrics are sent all the same")
            self._beside.popleft()
            self._tries = 0
        return True

    def _end_deleted(self, error: RunDeletedError) -> bool:
        """Report once that the run was deleted. Returns False."""
        self._say(f"tracking: {error}")
        self._settled = True
        return False

    def _send_files(self) -> None:
        """Be the thread of the files: neither the metrics nor the next file wait for one that can't be stored."""
        waiting: list[File] = []
        stored: dict[File, str] = {}  # and in which run
        last = said = False
        while not self._connected.wait(LOOK_S):
            if not self._rows_thread.is_alive():
                return
        while not last:
            closing, last = self._closing.is_set(), not self._rows_thread.is_alive()
            while not self._files.empty():
                file = self._files.get()
                waiting = [other for other in waiting if not file.replaces(other)] + [file]
            run_id = self._run.run_id
            waiting += [file for file, where in stored.items() if where != run_id and file not in waiting]
            waiting = [file for file in waiting if file.path.exists()]  # what was cut off is made and given again
            refused = {file: error for file in waiting if (error := self._store(file))}
            stored |= {file: run_id for file in waiting if file not in refused}
            waiting, self._files_lacking = list(refused), tuple(refused)
            if refused and not said:
                said = True
                file, error = next(iter(refused.items()))
                self._say(f"tracking: {file.path.name} can't be stored ({error}); metrics are sent all the same")
            self._files_tried = closing or last
            if closing:
                self._rows_thread.join(POLL_S)  # which may find at the last that the run goes on in another one
            else:
                self._closing.wait(LONGEST_PAUSE_S if waiting else POLL_S)

    def _store(self, file: File) -> str:
        """Deliver a file; returns why it could not be, "" where it could."""
        try:
            if file.episodes:
                self._run.store_episodes(file.path)
            else:
                self._run.store(file.path)
        except Exception as error:  # whatever the clients of artifact stores raise must not end the run
            return first_line(error)
        return ""

    def _until_done(self, call: Callable[[], None]) -> bool:
        """Call until it succeeds. False where the run was deleted, or the tracker is closing and the server is away."""
        pause_s = 0.5
        while True:
            last = self._closing.is_set()
            try:
                call()
            except RunDeletedError as error:
                return self._end_deleted(error)
            except Exception as error:  # whatever the tracker's client raises must not end the run
                if not self._away:
                    self._say(
                        f"tracking: {self.uri} can't be reached ({first_line(error)}); "
                        f"the run goes on, metrics.jsonl has all"
                    )
                self._away = True
            else:
                if self._away:
                    self._say(f"tracking: {self.uri} is back")
                self._away = False
                return True
            if last:
                return False
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

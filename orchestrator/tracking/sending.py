"""A tracker whose thread sends to one place, so that neither a step nor the end of a run waits for it.

    metrics.jsonl --rows that the place lacks--> thread --> place      tracking/.../<id>.sent counts the rows sent
    calls of the run --queue-------------------> thread --> place

The metrics file is the queue: this process, or a later one, sends the rows of an outage when the place is back.
"""

import queue
import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tracking.tracker import DataSet, Ended
from temper.orchestrator.tracking.tracking_error import RunDeletedError, first_line, is_refusal
from temper.orchestrator.tracking.unsent_rows import UnsentRows

POLL_S = 10.0
"""Seconds between two batches: one costs a client little more than a row."""
TRIES = 3
"""How often a call other than rows is made at a place that answers."""
STAGE_STEP = re.compile(r"(.+)-[0-9]+")
Call = Callable[[], None]


class Place:
    """One run in one place. Every call may block and may raise, and is repeated then."""

    where = ""
    """The address of the run. It is known once the tracker is connected."""

    @property
    def is_new(self) -> bool:
        """Whether the last `connect` made a run that lacks all that an earlier one got."""
        return True

    def connect(self) -> UnsentRows:
        """Find the run or create it; return the rows that it lacks. Called again if rows that it has were cut off."""
        raise NotImplementedError

    def require_there(self) -> None:
        """Raise `RunDeletedError` if the run is gone, another error if the place does not answer."""

    def send_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Deliver rows, in the order of the file."""
        raise NotImplementedError

    def send_params(self, values: dict[str, str]) -> None:
        """Deliver the configuration, in the place of the one before."""
        raise NotImplementedError

    def describe(self, note: str) -> None:
        """Deliver the description, in Markdown."""
        raise NotImplementedError

    def store(self, path: Path) -> None:
        """Deliver a file to its place in the run's folder."""
        raise NotImplementedError

    def store_episodes(self, path: Path) -> None:
        """Deliver episodes of a file of trajectories, if the place has a page for them."""

    def stage(self, name: str, params: dict[str, str], seconds: float | None, data: Sequence[DataSet]) -> None:
        """Tell the settings and data of a stage, if the place has a page for it."""

    def register(self, model: Path, facts: dict[str, str]) -> None:
        """Tell the checkpoint that the run has left, if the place has a page for it."""

    def finish_batch(self, *, complete: bool, last: bool) -> None:
        """Do the rest after the rows. `complete`: all calls have been made. `last`: the run ends."""

    def end(self, ended: Ended) -> None:
        """Mark the run as ended and wait, within a deadline, for the rest."""
        raise NotImplementedError

    def abandon(self) -> None:
        """End all that would delay the end of this process; any thread may call it."""


class SendingTracker:
    """A `Tracker` of one place, which its thread makes. `say` gets the few messages for people."""

    def __init__(self, name: str, make: Callable[[], Place], *, say: Callable[[str], None], close_s: float) -> None:
        self._name = name
        self._make_place = make
        self._say = say
        self._close_s = close_s
        self._place: Place | None = None
        self._unsent: UnsentRows | None = None
        self._params: dict[str, str] = {}
        self._told: queue.SimpleQueue[tuple[str, Callable[[Place], None]]] = queue.SimpleQueue()
        self._waiting: dict[str, Callable[[Place], None]] = {}
        """Calls besides the rows, by a name that a newer one replaces."""
        self._made: dict[str, Callable[[Place], None]] = {}
        """Those that were made: a run in the place of this one needs them too."""
        self._tries: dict[str, int] = {}
        self._failed: dict[str, None] = {}
        """Calls that were left out after `TRIES` errors, none of them a refusal: each batch tries the next one again."""
        self._said: set[str] = set()
        self._away = self._settled = False
        self._ended = Ended.FAILED
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"to-{name}", daemon=True)
        self._thread.start()

    def params(self, values: dict[str, str]) -> None:
        self._params = self._params | values
        given = self._params
        self._told.put(("the configuration", lambda place: place.send_params(given)))

    def artifact(self, path: Path) -> None:
        self._told.put((str(path), lambda place: place.store(path) if path.exists() else None))

    def episodes(self, path: Path) -> None:
        self._told.put((f"episodes of {stage_of(path)}", lambda place: place.store_episodes(path)))

    def describe(self, note: str) -> None:
        self._told.put(("the description", lambda place: place.describe(note)))

    def stage(
        self, name: str, params: dict[str, str], seconds: float | None = None, *, data: Sequence[DataSet] = ()
    ) -> None:
        self._told.put((f"the stage {name}", lambda place: place.stage(name, params, seconds, data)))

    def model(self, path: Path, facts: dict[str, str]) -> None:
        self._told.put(("the model", lambda place: place.register(path, facts)))

    def close(self, ended: Ended, *, timeout_s: float | None = None) -> None:
        """Send the rest for at most `timeout_s` seconds, then report undelivered rows and files."""
        timeout_s = self._close_s if timeout_s is None else timeout_s
        self._ended = ended
        self._closing.set()
        self._thread.join(timeout_s)
        if self._settled:
            return
        if self._thread.is_alive() and self._place is not None:
            self._place.abandon()
        rows = 0 if self._unsent is None else self._unsent.count()
        lacking = [f"{rows} rows of metrics.jsonl"] if rows else [Path(key).name for key in self._waiting]
        self._say(
            f"tracking: not all reached {self._name} in {timeout_s:.0f} s ({', '.join(lacking) or 'no connection'}); the same "
            f"command sends the rest"
        )

    def _work(self) -> None:
        """Be the thread: send what is new until the end, or until the run was deleted."""
        try:
            while True:
                last = self._closing.is_set()  # before the look, so that nothing is missed
                try:
                    self._send(last)
                except RunDeletedError as error:
                    self._say(f"tracking: {error}")
                    self._settled = True
                    return
                except Exception as error:  # no error of a client may end the run
                    self._report_outage(error)
                else:
                    if self._away:
                        self._say(f"tracking: {self._name} is back")
                    self._away = False
                if last:
                    return
                self._closing.wait(POLL_S)
        finally:
            if self._unsent is not None:
                self._unsent.close()

    def _report_outage(self, error: Exception) -> None:
        if not self._away:
            self._say(
                f"tracking: {self._name} can't be reached ({first_line(error)}); the run goes on, metrics.jsonl has all"
            )
        self._away = True

    def _send(self, last: bool) -> None:
        place = self._connected()
        assert self._unsent is not None
        self._unsent.send(place.send_rows, say=self._say)
        while not self._told.empty():
            key, call = self._told.get()
            self._waiting.pop(key, None)
            self._waiting[key] = call
        if self._failed and not last:
            key = next(iter(self._failed))
            del self._failed[key]
            if key in self._made and key not in self._waiting:
                self._waiting[key] = self._made.pop(key)
                self._tries[key] = TRIES - 1
        for key in list(self._waiting):
            self._call(key, partial(self._waiting[key], place), last=last)
        finish = partial(place.finish_batch, complete=not self._waiting, last=last)
        self._attempt("the end of a batch", finish, last=last)
        if last:
            place.end(self._ended)
            self._settled = not self._waiting

    def _connected(self) -> Place:
        if self._place is None:
            self._place = self._make_place()
        if self._unsent is None or self._unsent.is_cut():
            if self._unsent is not None:
                self._unsent.close()
            self._unsent = None
            self._unsent = self._place.connect()
            if self._place.is_new:
                self._waiting, self._made = self._made | self._waiting, {}
            if self._place.where and self._place.where not in self._said:
                self._said.add(self._place.where)
                self._say(f"tracking: {self._place.where}")
        return self._place

    def _call(self, key: str, call: Call, *, last: bool) -> None:
        """Make a waiting call; keep it if it is to be made again."""
        self._failed.pop(key, None)
        if self._attempt(key, call, last=last):
            self._made[key] = self._waiting.pop(key)

    def _attempt(self, key: str, call: Call, *, last: bool) -> bool:
        """Make a call, at the last up to `TRIES` times. Return whether it was made or left out for good.

        Raise the error of an outage, which costs no try.
        """
        while True:
            try:
                call()
            except RunDeletedError:
                raise
            except Exception as error:  # no error of a client may end the run
                assert self._place is not None
                self._place.require_there()
                self._tries[key] = self._tries.get(key, 0) + 1
                if self._tries[key] < TRIES and not is_refusal(error):
                    if last:
                        continue
                    return False
                if not is_refusal(error):
                    self._failed[key] = None
                if (why := first_line(error)) not in self._said:
                    self._said.add(why)
                    self._say(
                        f"tracking: {self._name} does not take {Path(key).name} ({why}); metrics are sent all the same"
                    )
            self._tries.pop(key, None)
            return True


def stage_of(path: Path) -> str:
    """Return the stage of a file STAGE-STEP, else its name: the episodes of a stage's newest file replace older ones."""
    found = STAGE_STEP.fullmatch(path.stem)
    return path.stem if found is None or path.stem.startswith("eval-") else found[1]

"""Sends a run to one backend from a thread, so that neither a step nor the end of a run waits for it.

    metrics.jsonl --unsent rows--> thread --> backend      tracking/.../<id>.sent counts the rows sent
    calls of the run --queue-----> thread --> backend

The metrics file is the queue: after an outage this process, or a later one, sends the missing rows.
"""

import queue
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from temper.orchestrator.tracking.backend import Backend, RunDeletedError, RunStatus, first_line, is_refusal
from temper.orchestrator.tracking.unsent_rows import UnsentRows

POLL_S = 10.0
"""Seconds between two batches. A batch costs little more than a row."""
ABANDONED_S = 3.0
"""Time for the thread to end after its backend is abandoned."""
MAX_TRIES = 3
"""Tries of a failing call at a reachable backend, before a later batch retries it."""
Call = Callable[[Backend], None]


class Sender:
    """Sends to one backend, created in the thread. `notify` receives the messages."""

    def __init__(
        self, name: str, make: Callable[[], Backend], *, notify: Callable[[str], None], close_s: float
    ) -> None:
        self._name = name
        self._make_backend = make
        self._notify = notify
        self._close_s = close_s
        self._backend: Backend | None = None
        self._unsent: UnsentRows | None = None
        self._queue: queue.SimpleQueue[tuple[str, Call]] = queue.SimpleQueue()
        self._waiting: dict[str, Call] = {}
        self._done: dict[str, Call] = {}
        """Completed calls, repeated if a new run replaces this one."""
        self._failed: dict[str, Call] = {}
        """Calls that failed `MAX_TRIES` times at a reachable backend. Each batch retries the oldest one."""
        self._notified: set[str] = set()
        self._unreachable = self._finished = self._abandoned = False
        self._status = RunStatus.FAILED
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"to-{name}", daemon=True)
        self._thread.start()

    def add(self, key: str, call: Call) -> None:
        """Queue a call and replace an earlier one of this key."""
        self._queue.put((key, call))

    def close(self, status: RunStatus, *, timeout_s: float | None = None) -> None:
        """Send the rest for at most `timeout_s` seconds, then report unsent rows and files."""
        timeout_s = self._close_s if timeout_s is None else timeout_s
        self._status = status
        self._closing.set()
        self._thread.join(timeout_s)
        if self._finished:
            return
        if self._thread.is_alive() and self._backend is not None:
            self._abandoned = True
            self._backend.abandon()
            self._thread.join(ABANDONED_S)  # a thread in a client's C code may abort the process as it ends
        rows = 0 if self._unsent is None else self._unsent.count()
        lacking = [f"{rows} rows of metrics.jsonl"] if rows else [Path(key).name for key in self._waiting]
        self._notify(
            f"tracking: not all reached {self._name} in {timeout_s:.0f} s ({', '.join(lacking) or 'no connection'}); rerun "
            f"the same command to send the rest"
        )

    def _work(self) -> None:
        """Send new data until the run ends or is deleted."""
        last = False
        while not (last or self._finished or self._abandoned):
            last = self._closing.is_set()  # before sending, so that nothing is missed
            try:
                self._send(last=last)
                if self._unreachable:
                    self._notify(f"tracking: {self._name} is back")
                self._unreachable = False
            except RunDeletedError as error:
                self._notify(f"tracking: {error}")
                self._finished = True
            except Exception as error:  # no error of a client may end the run
                if not (self._unreachable or self._abandoned):
                    self._notify(
                        f"tracking: {self._name} is unreachable ({first_line(error)}); the run continues, metrics.jsonl "
                        f"keeps all"
                    )
                self._unreachable = True
            if not (last or self._finished):
                self._closing.wait(POLL_S)
        if self._unsent is not None:
            self._unsent.close()

    def _send(self, *, last: bool) -> None:
        backend, unsent = self._connect()
        unsent.send(backend.send_rows, notify=self._notify)
        while not self._queue.empty():
            key, call = self._queue.get()
            self._failed.pop(key, None)
            self._waiting.pop(key, None)
            self._waiting[key] = call
        self._waiting |= dict(list(self._failed.items())[: None if last else 1])
        for key, call in list(self._waiting.items()):
            self._failed.pop(key, None)
            done = self._try(key, partial(call, backend))
            (self._done if done else self._failed)[key] = self._waiting.pop(key)
        self._try("the end of a batch", partial(backend.finish_batch, last=last))
        if last:
            backend.end(self._status)
            self._finished = True

    def _connect(self) -> tuple[Backend, UnsentRows]:
        """Return the backend and its unsent rows. Connect if needed, or if sent rows disappeared from the file."""
        self._backend = self._backend or self._make_backend()
        if self._unsent is None or self._unsent.has_lost_rows():
            if self._unsent is not None:
                self._unsent.close()
            self._unsent = None
            self._unsent = self._backend.connect()
            self._waiting, self._done, self._failed = self._done | self._failed | self._waiting, {}, {}
            if self._backend.address and self._backend.address not in self._notified:
                self._notified.add(self._backend.address)
                self._notify(f"tracking: {self._backend.address}")
        return self._backend, self._unsent

    def _try(self, key: str, call: Callable[[], None]) -> bool:
        """Make a call up to `MAX_TRIES` times. Return whether it succeeded or was refused for good.

        Raise the error of an outage.
        """
        assert self._backend is not None
        for left in reversed(range(MAX_TRIES)):
            try:
                call()
                return True
            except RunDeletedError:
                raise
            except Exception as error:  # no error of a client may end the run
                self._backend.require_run()
                if left and not is_refusal(error):
                    continue
                if (why := first_line(error)) not in self._notified:
                    self._notified.add(why)
                    self._notify(f"tracking: {self._name} rejects {Path(key).name} ({why}); metrics are still sent")
                return is_refusal(error)
        return False

"""Sends a run to one place from a thread, so that neither a step nor the end of a run waits for it.

    metrics.jsonl --rows that the place lacks--> thread --> place      tracking/.../<id>.sent counts the rows sent
    calls of the run --queue-------------------> thread --> place

The metrics file is the queue: this process, or a later one, sends the rows of an outage when the place is back.
"""

import queue
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from temper.orchestrator.tracking.place import Ended, Place, RunDeletedError, first_line, is_refusal
from temper.orchestrator.tracking.unsent_rows import UnsentRows

POLL_S = 10.0
"""Seconds between two batches: one costs a client little more than a row."""
ABANDONED_S = 3.0
"""Time that the thread has to end once its place is abandoned."""
TRIES = 3
"""How often a call is made at a place that answers, before it is left to a later batch."""
Call = Callable[[Place], None]


class Sender:
    """Sends to one place, which its thread makes. `say` gets the few messages for people."""

    def __init__(self, name: str, make: Callable[[], Place], *, say: Callable[[str], None], close_s: float) -> None:
        self._name = name
        self._make_place = make
        self._say = say
        self._close_s = close_s
        self._place: Place | None = None
        self._unsent: UnsentRows | None = None
        self._added: queue.SimpleQueue[tuple[str, Call]] = queue.SimpleQueue()
        self._waiting: dict[str, Call] = {}
        self._made: dict[str, Call] = {}
        """Calls that were made: a run in the place of this one needs them too."""
        self._failed: dict[str, Call] = {}
        """Calls that failed `TRIES` times at a place that answers: each batch tries the oldest one again."""
        self._said: set[str] = set()
        self._away = self._settled = self._given_up = False
        self._ended = Ended.FAILED
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"to-{name}", daemon=True)
        self._thread.start()

    def add(self, key: str, call: Call) -> None:
        """Have a call made, in place of an earlier one of this key."""
        self._added.put((key, call))

    def close(self, ended: Ended, *, timeout_s: float | None = None) -> None:
        """Send the rest for at most `timeout_s` seconds, then report undelivered rows and files."""
        timeout_s = self._close_s if timeout_s is None else timeout_s
        self._ended = ended
        self._closing.set()
        self._thread.join(timeout_s)
        if self._settled:
            return
        if self._thread.is_alive() and self._place is not None:
            self._given_up = True
            self._place.abandon()
            self._thread.join(ABANDONED_S)  # a thread in a client's C code may abort the process as it ends
        rows = 0 if self._unsent is None else self._unsent.count()
        lacking = [f"{rows} rows of metrics.jsonl"] if rows else [Path(key).name for key in self._waiting]
        self._say(
            f"tracking: not all reached {self._name} in {timeout_s:.0f} s ({', '.join(lacking) or 'no connection'}); the same "
            f"command sends the rest"
        )

    def _work(self) -> None:
        """Send what is new until the end, or until the run was deleted."""
        last = False
        while not (last or self._settled or self._given_up):
            last = self._closing.is_set()  # before the look, so that nothing is missed
            try:
                self._send(last=last)
                if self._away:
                    self._say(f"tracking: {self._name} is back")
                self._away = False
            except RunDeletedError as error:
                self._say(f"tracking: {error}")
                self._settled = True
            except Exception as error:  # no error of a client may end the run
                if not (self._away or self._given_up):
                    self._say(
                        f"tracking: {self._name} can't be reached ({first_line(error)}); the run goes on, metrics.jsonl has "
                        f"all"
                    )
                self._away = True
            if not (last or self._settled):
                self._closing.wait(POLL_S)
        if self._unsent is not None:
            self._unsent.close()

    def _send(self, *, last: bool) -> None:
        place, unsent = self._connected()
        unsent.send(place.send_rows, say=self._say)
        while not self._added.empty():
            key, call = self._added.get()
            self._failed.pop(key, None)
            self._waiting.pop(key, None)
            self._waiting[key] = call
        self._waiting |= dict(list(self._failed.items())[: None if last else 1])
        for key, call in list(self._waiting.items()):
            self._failed.pop(key, None)
            done = self._try(key, partial(call, place))
            (self._made if done else self._failed)[key] = self._waiting.pop(key)
        self._try("the end of a batch", partial(place.finish_batch, last=last))
        if last:
            place.end(self._ended)
            self._settled = True

    def _connected(self) -> tuple[Place, UnsentRows]:
        """Return the place and its unsent rows; connect first if needed, or if sent rows have been cut off the file."""
        self._place = self._place or self._make_place()
        if self._unsent is None or self._unsent.is_cut():
            if self._unsent is not None:
                self._unsent.close()
            self._unsent = None
            self._unsent = self._place.connect()
            self._waiting, self._made, self._failed = self._made | self._failed | self._waiting, {}, {}
            if self._place.where and self._place.where not in self._said:
                self._said.add(self._place.where)
                self._say(f"tracking: {self._place.where}")
        return self._place, self._unsent

    def _try(self, key: str, call: Callable[[], None]) -> bool:
        """Make a call up to `TRIES` times; return whether it was made, or refused for good.

        Raise the error of an outage.
        """
        assert self._place is not None
        for left in reversed(range(TRIES)):
            try:
                call()
                return True
            except RunDeletedError:
                raise
            except Exception as error:  # no error of a client may end the run
                self._place.require_there()
                if left and not is_refusal(error):
                    continue
                if (why := first_line(error)) not in self._said:
                    self._said.add(why)
                    self._say(
                        f"tracking: {self._name} does not take {Path(key).name} ({why}); metrics are sent all the same"
                    )
                return is_refusal(error)
        return False

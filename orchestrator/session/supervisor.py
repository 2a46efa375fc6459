"""The task that supervises the processes of a run. It inspects and ends a stuck process.

The death of a process raises in the calls that wait for its work, so no other code handles hangs.
"""

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from temper.envs.core.process import Heartbeat, WatchedProcess
from temper.orchestrator.cluster.actors import run_at_place
from temper.orchestrator.config.run_config import SupervisionConfig
from temper.orchestrator.session.diagnosis import FaultDiagnosis, diagnose, end, outputs, tails

END_S = 20.0
AWAKE_HEARTBEATS = 2.0
"""Most heartbeat intervals between two checks. A longer gap was a pause of the driver itself."""


class AwakeClock:
    """Counts the seconds in which this process was awake.

    If this process was stopped or starved, the silence of others means nothing. Such a pause counts as `most_s`.
    """

    def __init__(self, most_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._most_s = most_s
        self._clock = clock
        self._last = clock()
        self._awake_s = 0.0

    def now(self) -> float:
        """Return the seconds so far. Call it often."""
        last, self._last = self._last, self._clock()
        self._awake_s += min(self._last - last, self._most_s)
        return self._awake_s


class Watch:
    """Sends one process heartbeat requests, one at a time, and checks the replies. Times are of an `AwakeClock`."""

    def __init__(self, process: WatchedProcess, *, now: float) -> None:
        self.process = process
        self.heartbeat: Heartbeat | None = None
        self.answered = now
        self.logs: list[Path] = []
        """Its local output files."""
        self.ending: asyncio.Task[None] | None = None
        """The task that inspects and ends it, once it is stuck."""
        self._moved = now
        self._refused = ""
        self._asking: asyncio.Task[Heartbeat] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether no task inspects or ends it. Raise the error of that task."""
        if self.ending is None or not self.ending.done():
            return self.ending is None
        self.ending.result()
        return True

    @property
    def has_failed(self) -> bool:
        ending = self.ending
        return ending is not None and ending.done() and not ending.cancelled() and ending.exception() is not None

    def tick(self, now: float, config: SupervisionConfig) -> str | None:
        """Read a reply if there is one and ask again. Return the problem with the setting of its limit, or None."""
        self._take(now)
        self._ask()
        silent, stalled = now - self.answered, now - self._moved
        if silent > config.silent_s:
            return f"no heartbeat for {silent:.0f} s (supervision.silent_s={config.silent_s:g}){self._refused}"
        if self.heartbeat is not None and self.heartbeat.doing and stalled > config.stalled_s:
            return (
                f"{self.heartbeat.doing}: no progress for {stalled:.0f} s (supervision.stalled_s={config.stalled_s:g})"
            )
        return None

    async def is_well(self, now: Callable[[], float], config: SupervisionConfig) -> bool:
        """Ask once more, wait `heartbeat_s`, and return whether the problem is gone."""
        self._take(now())
        await asyncio.wait({self._ask()}, timeout=config.heartbeat_s)
        return self.tick(now(), config) is None

    def close(self) -> None:
        for task in (self._asking, self.ending):
            if task is not None:
                task.cancel()

    def _ask(self) -> "asyncio.Task[Heartbeat]":
        """Return the open request, or a new one."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._heartbeat())
        return self._asking

    async def _heartbeat(self) -> Heartbeat:
        return await self.process.heartbeat()

    def _take(self, now: float) -> None:
        if self._asking is None or not self._asking.done():
            return
        asking, self._asking = self._asking, None
        try:
            heartbeat = asking.result()
        except Exception as error:  # callers of its work see the error; without any it stays silent, which is a problem
            self._refused = f"; its last reply was {type(error).__name__}: {error}"
            return
        place = self.process.place
        if self.heartbeat is None and place is not None and place.node is None:
            self.logs = outputs(place.pid)
        if self.heartbeat is None or not heartbeat.doing or heartbeat.progress != self.heartbeat.progress:
            self._moved = now
        self.heartbeat, self.answered, self._refused = heartbeat, now, ""


class Supervisor:
    """Checks all processes every `heartbeat_s`."""

    def __init__(
        self,
        config: SupervisionConfig,
        *,
        processes: Callable[[], Sequence[WatchedProcess]],
        on_fault: Callable[[FaultDiagnosis], None],
        on_look: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`processes` returns the current ones. `on_fault` records a diagnosis. `on_look` is called after each check."""
        self._config = config
        self._processes = processes
        self._on_fault = on_fault
        self._on_look = on_look
        self._clock = AwakeClock(AWAKE_HEARTBEATS * config.heartbeat_s, clock)
        self._watches: dict[int, Watch] = {}  # by identity: a new worker may have the name of the failed one

    async def run(self) -> None:
        """Supervise until cancelled. Record the first own error as a fault and continue. Raise the second."""
        failed = False
        try:
            while True:
                try:
                    await self.once()
                except Exception as error:
                    if failed:
                        raise
                    failed = True
                    self._begin_anew(error)
                await asyncio.sleep(self._config.heartbeat_s)
        finally:
            for watch in self._watches.values():
                watch.close()

    async def once(self) -> None:
        self.look()
        await self._on_look()

    def look(self) -> None:
        """Check all processes and start to inspect stuck ones."""
        now, processes = self._clock.now(), {id(process): process for process in self._processes()}
        for key, watch in list(self._watches.items()):
            if watch.is_settled and key not in processes:
                self._watches.pop(key).close()
        for key, process in processes.items():
            watch = self._watches.setdefault(key, Watch(process, now=now))
            if watch.ending is None and (breach := watch.tick(now, self._config)):
                watch.ending = asyncio.create_task(self._end_stuck(watch, breach))

    def _begin_anew(self, error: Exception) -> None:
        """Record an own error. A process whose end failed is watched anew."""
        for key, watch in list(self._watches.items()):
            if watch.has_failed:
                self._watches.pop(key).close()
        evidence = "".join(traceback.format_exception(error))
        self._on_fault(FaultDiagnosis(who="the supervision", kind="failed", what=repr(error), evidence=evidence))

    def record_failure(self, who: str, error: Exception) -> None:
        """Record the failure of a process or group of processes, unless this supervisor ended it."""
        watches = [w for w in self._watches.values() if w.process.name == who or w.process.name.startswith(f"{who}'s ")]
        if any(watch.ending for watch in watches):
            return
        evidence = "\n\n".join(tails(path for watch in watches for path in watch.logs)) or "no local log"
        self._on_fault(FaultDiagnosis(who=who, kind="died", what=str(error), evidence=evidence))

    async def inspect_all(self, what: str) -> None:
        """Record the state of all processes after a late wait of the run. End none."""
        await self.inspect([watch.process for watch in self._watches.values()], what)

    async def inspect(self, processes: Sequence[WatchedProcess], what: str) -> None:
        """Record the state of processes, including starting ones."""
        looks = (
            diagnose(process, what, kind="looked at", heartbeat=self._heartbeat_of(process)) for process in processes
        )
        for diagnosis in await asyncio.gather(*looks):
            self._on_fault(diagnosis)

    async def end_starting(self, process: WatchedProcess, what: str) -> None:
        """Diagnose and end a process that did not start in time."""
        found = await diagnose(process, what, kind="hung")
        watch = self._watches.setdefault(id(process), Watch(process, now=self._clock.now()))
        watch.ending = asyncio.create_task(self._end(watch, found))
        await asyncio.wait({watch.ending})

    def watch_of(self, process: WatchedProcess) -> Watch | None:
        return self._watches.get(id(process))

    def tokens(self) -> int:
        """Return the tokens that the engines have sampled, by their last heartbeats."""
        return sum(watch.heartbeat.tokens for watch in self._watches.values() if watch.heartbeat is not None)

    def _heartbeat_of(self, process: WatchedProcess) -> Heartbeat | None:
        watch = self.watch_of(process)
        return None if watch is None else watch.heartbeat

    def silent_s(self, watch: Watch) -> float:
        return self._clock.now() - watch.answered

    async def _end_stuck(self, watch: Watch, breach: str) -> None:
        found = await diagnose(watch.process, breach, kind="hung", heartbeat=watch.heartbeat)
        if await watch.is_well(self._clock.now, self._config):
            what = f"{breach}; it answers and makes progress again, and keeps running"
            self._on_fault(replace(found, kind="recovered", what=what))
            watch.ending = None
        else:
            await self._end(watch, found)

    async def _end(self, watch: Watch, found: FaultDiagnosis) -> None:
        try:
            self._on_fault(found)
        finally:
            watch.process.kill()
        if found.place is not None and found.processes:  # a stopped process and its children would stay
            with contextlib.suppress(TimeoutError, RuntimeError):  # the machine may be gone with them
                await asyncio.wait_for(run_at_place(found.place, end, found.processes), END_S)

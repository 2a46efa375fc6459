"""Connects the supervisor to the run: supervised processes, faults, `status.json` and `scale` requests."""

import asyncio
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from temper.envs.core.process import ProcessInfo, WatchedProcess
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.deadline import StuckError, in_thread
from temper.orchestrator.loop.watches import FailureWatch
from temper.orchestrator.run.progress import SamplingCount, sampling_shown
from temper.orchestrator.run.redaction import blank_text
from temper.orchestrator.session.context import RunContext
from temper.orchestrator.session.diagnosis import FaultDiagnosis, FaultFolder
from temper.orchestrator.session.status import (
    SCALE_FILE,
    STATUS_FILE,
    EvaluationStatus,
    ProcessStatus,
    RunStatus,
    TicketStatus,
    take_request,
)
from temper.orchestrator.session.supervisor import Supervisor
from temper.rollout.trajectory import Group

FAULT, RESTARTED, SCALED, FAILED = "fault", "restarted", "scaled", "failed"
CLOSE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopView:
    """The view of the current stage that samples."""

    stage: str
    buffer: Buffer
    version: VersionCell
    failures: FailureWatch


@dataclass(slots=True, kw_only=True)
class EvaluationView:
    """The view of a running evaluation. `began` is on the monotonic clock."""

    name: str
    tasks: int
    count: SamplingCount
    answered: int = 0
    began: float = field(default_factory=time.monotonic)

    def add(self, group: Group) -> None:
        self.answered += 1
        self.count.add(group)

    def status(self) -> EvaluationStatus:
        age_s = round(time.monotonic() - self.began, 1)
        return EvaluationStatus(name=self.name, answered=self.answered, tasks=self.tasks, age_s=age_s)


class RunSupervision:
    """Supervises the processes of one run."""

    def __init__(
        self, run: RunContext, *, processes: Callable[[], Sequence[ProcessInfo]], resize: Callable[[int], bool]
    ) -> None:
        """`resize` requests a number of rollout workers. It returns False before their start."""
        self._run = run
        self._processes = processes
        self._resize = resize
        self._faults = FaultFolder(run.folder.faults)
        self._loop: LoopView | None = None
        self._evaluation: EvaluationView | None = None
        self._seen: dict[int, float] = {}  # time of the first sight by ticket
        self._files: asyncio.Task[int | None] | None = None
        self._trouble = ""  # with these files, logged once
        self._block: asyncio.Task[object] | None = None
        self._error: Exception | None = None
        self._copying: asyncio.Task[None] | None = None
        self._supervisor = Supervisor(
            run.config.supervision, processes=self._watched, on_fault=self._record, on_look=self._looked
        )

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Supervise during the block. If the block is stuck, record the state of all processes.

        Raise `RuntimeError` if the supervision itself fails twice, since hung processes would stay.
        """
        (self._run.folder.root / SCALE_FILE).unlink(missing_ok=True)  # a request to an earlier run
        watching, block = asyncio.create_task(self._supervisor.run()), asyncio.current_task()
        assert block is not None
        self._block = block

        def ended(_: object) -> None:
            if not watching.cancelled():
                block.cancel()

        watching.add_done_callback(ended)
        try:
            yield
        except StuckError as error:
            await self._supervisor.inspect_all(str(error))
            raise
        except asyncio.CancelledError:
            if self._error is not None:
                block.uncancel()
                raise self._error from None
            if not watching.done() or watching.cancelled():
                raise
            block.uncancel()
            raise RuntimeError(
                f"the supervision failed twice, so hung processes would stay ({watching.exception()!r}); rerun the same "
                f"command to resume"
            ) from watching.exception()
        finally:
            self._block = None
            watching.remove_done_callback(ended)
            watching.cancel()
            await asyncio.wait({watching}, timeout=CLOSE_S)
            if self._files is not None:
                self._files.cancel()

    def end_run(self, error: Exception) -> None:
        """Raise an error in the block of `watching`."""
        if self._block is not None and self._error is None:
            self._error = error
            self._block.cancel()

    def shows(self, loop: LoopView) -> None:
        """Show this stage's buffer and failures from now on."""
        self._loop, self._seen = loop, {}

    @asynccontextmanager
    async def evaluating(self, name: str, *, tasks: int, samples: int) -> AsyncIterator[EvaluationView]:
        """Show an evaluation during the block, which adds its groups to the view."""
        async with self.sampling(f"evaluation of {name}", asked=tasks * samples) as count:
            self._evaluation = view = EvaluationView(name=name, tasks=tasks, count=count)
            try:
                yield view
            finally:
                self._evaluation = None

    @asynccontextmanager
    async def sampling(
        self, name: str, *, asked: int, look: Callable[[SamplingCount], bool] = lambda count: True
    ) -> AsyncIterator[SamplingCount]:
        """Show the number of finished answers during the block. `look` is as in `sampling_shown`."""
        count = SamplingCount(name, asked=asked, tokens=self._supervisor.tokens)
        async with sampling_shown(self._run.progress, count, look=lambda: look(count)):
            yield count

    async def inspect_starting(self, what: str) -> None:
        """Record the state of processes that did not start in time. End none."""
        await self._supervisor.inspect([one.process for one in self._processes() if not one.watched], what)

    async def end_starting(self, process: WatchedProcess, what: str) -> None:
        await self._supervisor.end_starting(process, what)

    def record_failure(self, who: str, error: Exception) -> None:
        """Record a failure that a restart follows, of a rollout worker by name or of the learner."""
        self._supervisor.record_failure(who, error)

    def record_restart(self, who: str, what: str, *, after: tuple[str, int] | None = None) -> None:
        """Record the restart of a process, after a step of a stage, by default the last one."""
        self._event(RESTARTED, {"who": who, "what": what}, after=after)
        self._run.progress.note(f"{who} {what}")

    def record_end(self, error: Exception) -> None:
        """Record the error that ends the run, so that it is known without the terminal."""
        self._event(FAILED, {"error": f"{type(error).__name__}: {blank_text(str(error))}"})

    def status(self) -> RunStatus:
        view, loop, processes = self._run.progress.current, self._loop, self._processes()
        loop = loop if loop is not None and view is not None and loop.stage == view.name else None
        workers = {number: one.name for one in processes for number in one.tickets}
        slots = {} if loop is None else loop.buffer.slots
        now = time.monotonic()
        self._seen = {number: self._seen.get(number, now) for number in slots}
        return RunStatus(
            pid=os.getpid(),
            host=socket.gethostname(),
            time=time.time(),
            stage="" if view is None else view.name,
            step=0 if view is None else view.step,
            steps=0 if view is None else view.total,
            version=self._run.version.step if loop is None else loop.version.value.step,
            buffer=dict(Counter(state.value for _, state in slots.values())),
            tickets=tuple(
                TicketStatus(
                    number=number,
                    env=env,
                    state=state.value,
                    age_s=round(now - self._seen[number], 1),
                    worker=workers.get(number),
                )
                for number, (env, state) in slots.items()
            ),
            processes=tuple(map(self._process_status, processes)),
            failures={} if loop is None else {kind.value: count for kind, count in loop.failures.kinds.items()},
            faults=self._faults.count,
            evaluation=None if self._evaluation is None else self._evaluation.status(),
        )

    def _process_status(self, one: ProcessInfo) -> ProcessStatus:
        place, watch = one.process.place, self._supervisor.watch_of(one.process)
        heartbeat = None if watch is None else watch.heartbeat
        return ProcessStatus(
            name=one.name,
            state=one.state,
            restarts=one.restarts,
            tickets=one.tickets,
            pid=None if place is None else place.pid,
            host=None if place is None else place.host,
            node=None if place is None else place.node,
            answered_s=None if watch is None or heartbeat is None else round(self._supervisor.silent_s(watch), 1),
            progress=None if heartbeat is None else heartbeat.progress,
            doing="" if heartbeat is None else heartbeat.doing,
            quiet_s=None if heartbeat is None else round(heartbeat.quiet_s, 1),
        )

    def _watched(self) -> list[WatchedProcess]:
        return [one.process for one in self._processes() if one.watched]

    def _record(self, diagnosis: FaultDiagnosis) -> None:
        """Record a fault in its file, on the screen and in the metrics."""
        stage, step = self._stage_and_step()
        groups = [
            f"#{one.number} {one.env} ({one.age_s:.0f} s)"
            for one in self.status().tickets
            if one.worker == diagnosis.who
        ]
        try:
            path = self._faults.write(diagnosis, stage=stage, step=step, groups=groups)
            where = str(path.relative_to(self._run.folder.root))
        except OSError as error:
            where = f"not written: {error}"
        self._run.progress.note(f"{diagnosis.line}; {where}")
        self._event(FAULT, {"who": diagnosis.who, "how": diagnosis.kind, "what": diagnosis.what, "evidence": where})
        self._copy_output_now()

    def _copy_output_now(self) -> None:
        """Copy the output of workers at once, in case the driver ends soon. Never twice at the same time."""
        if self._run.printed is not None and (self._copying is None or self._copying.done()):
            self._copying = asyncio.create_task(self._run.copy_output())

    def _event(self, kind: str, what: dict[str, str], *, after: tuple[str, int] | None = None) -> None:
        """Add an event, by default after the last step. A failed write does not end the supervision."""
        stage, step = after or self._stage_and_step()
        try:
            self._run.metrics.event(stage, step, kind, what)
        except OSError as error:
            self._run.progress.note(f"metrics.jsonl lacks an event {kind}: {error}")

    def _stage_and_step(self) -> tuple[str, int]:
        view = self._run.progress.current
        return ("start", 0) if view is None else (view.name, view.step)

    async def _looked(self) -> None:
        """Write the status and read requests in a thread, so that a hanging disk does not block the supervision."""
        if self._files is not None:
            if not self._files.done():
                return
            self._handle_request(self._files)
        self._files = asyncio.create_task(in_thread(self._exchange, self.status()))

    def _exchange(self, status: RunStatus) -> int | None:
        """Write the status. Return the requested number of rollout workers."""
        status.write(self._run.folder.root)
        return take_request(self._run.folder.root)

    def _handle_request(self, files: "asyncio.Task[int | None]") -> None:
        """Handle a request for another number of workers. Log once why the files cannot be written or read."""
        try:
            wanted = files.result()
        except (OSError, ValueError) as error:
            if str(error) != self._trouble:
                self._run.progress.note(f"the run continues without {STATUS_FILE} or a request: {error}")
            self._trouble = str(error)
            return
        if wanted is not None:
            none = "" if self._resize(wanted) else ", but the run has none now; repeat the request once it has"
            self._run.progress.note(f"scale: {wanted} rollout workers requested{none}")
            self._event(SCALED, {"rollout_workers": f"{wanted}{none}"})

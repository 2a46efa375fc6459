"""Waits with deadlines. A wait ends with a result, with an error that names the late result, or with the stop of the run."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

from temper.envs.core.bounds import require_positive
from temper.envs.core.clock import loop_time
from temper.envs.core.setting import free

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")
GIVEN_UP_S = 30.0
"""Seconds that cancelled work may take to clean up."""
EXTENSIONS = 2
"""How often restarts of processes may extend one wait. A large fleet always has a recent one."""


class StuckError(RuntimeError):
    """A wait passed its deadline. The message names the stage, the late result and the setting of the deadline."""


class StopRequested(Exception):
    """The user stopped the run (Ctrl-C, SIGTERM, a stopped job). Rerun the same command to resume."""


STOPPED = 130
"""Exit status of a run that a signal stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A limit of a wait, and the setting that defines it."""

    seconds: float
    setting: str


@dataclass(frozen=True, kw_only=True)
class DeadlineConfig:
    """Deadlines that all stages share. Deadlines of sampling are in each stage's `timeout_s`."""

    start_s: float = free(300.0, unit="seconds")
    """Placement and start of the engines, the learner's ranks or the sandboxes, in seconds."""
    step_s: float = free(600.0, unit="seconds")
    """One supervised step, or building its batch, in seconds."""
    files_s: float = free(300.0, unit="seconds")
    """Reading or writing a model or a checkpoint, in seconds, plus the time for its bytes."""
    phase_s: float = free(120.0, unit="seconds")
    """One phase change of one process with placement=colocated, in seconds: an engine sleeps or wakes, or the learner moves
    its weights and states."""
    megabytes_per_s: float = free(50.0, unit="MB/s")
    """Lowest rate at which a model or checkpoint is read or written, in megabytes a second. Its bytes extend the deadlines of
    files and starts."""

    def __post_init__(self) -> None:
        require_positive("deadlines.start_s", self.start_s)
        require_positive("deadlines.step_s", self.step_s)
        require_positive("deadlines.files_s", self.files_s)
        require_positive("deadlines.phase_s", self.phase_s)
        require_positive("deadlines.megabytes_per_s", self.megabytes_per_s)

    def start(self, nbytes: int = 0) -> Deadline:
        """Return the deadline for the start of processes that read `nbytes`."""
        return Deadline(seconds=self.start_s + self._moving(nbytes), setting="deadlines.start_s")

    def step(self) -> Deadline:
        return Deadline(seconds=self.step_s, setting="deadlines.step_s")

    def phase(self) -> Deadline:
        """Return the deadline of one process's phase change."""
        return Deadline(seconds=self.phase_s, setting="deadlines.phase_s")

    def files(self, nbytes: int) -> Deadline:
        return Deadline(seconds=self.files_s + self._moving(nbytes), setting="deadlines.files_s")

    def _moving(self, nbytes: int) -> float:
        return nbytes / (self.megabytes_per_s * 1e6)


async def within(
    limit: Deadline,
    awaitable: Awaitable[T],
    *,
    stage: str,
    waiting_for: str | Callable[[], str],
    last_progress: Callable[[], float] = lambda: 0.0,
    last_restart_at: Callable[[], float] = lambda: 0.0,
    on_stuck: Callable[[str], Awaitable[None]] | None = None,
    advice: str = "",
) -> T:
    """Return the awaitable's result. Raise `StuckError` after `limit` without progress.

    `last_progress` returns when a result came last and `last_restart_at` when a process failed or restarted last, both on the
    monotonic clock. Progress starts the limit anew. A restart does so at most `EXTENSIONS` times, or while it is under way,
    since a start has its own deadline. `on_stuck` gets the message before the wait ends, and a result that comes meanwhile
    counts. `advice` replaces the advice to rerun the command. A `TimeoutError` of the awaitable passes through. If another
    party cancels the awaitable, raise `RuntimeError`, since the run itself continues.
    """
    work, began, extensions = asyncio.ensure_future(awaitable), loop_time(), 0
    try:
        while not work.done():
            now = loop_time()
            left, recent = max(began, last_progress()) + limit.seconds - now, last_restart_at()
            if left <= 0 < recent + limit.seconds - now and (recent >= now or extensions < EXTENSIONS):
                extensions += recent < now
                left = recent + limit.seconds - now
            if left <= 0:
                usual = f"rerun the same command to resume, with a longer {limit.setting} if it was too short"
                stuck = StuckError(
                    f"{stage}: nothing for {limit.seconds:.0f} s while waiting for {_text(waiting_for)}; {advice or usual}"
                )
                if on_stuck is not None:
                    await on_stuck(str(stuck))
                if work.done():
                    break
                raise stuck
            await asyncio.wait({work}, timeout=left)
        if work.cancelled():
            raise RuntimeError(f"{stage}: the wait for {_text(waiting_for)} was cancelled from outside the run")
        return work.result()
    finally:
        work.cancel()


def _text(waiting_for: str | Callable[[], str]) -> str:
    return waiting_for if isinstance(waiting_for, str) else waiting_for()


async def together(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of all awaitables. If one fails, cancel the others first."""
    tasks = [asyncio.ensure_future(one) for one in awaitables]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GIVEN_UP_S)


async def in_thread(function: Callable[[*Arguments], T], *args: *Arguments) -> T:
    """Run a function in a new thread and return its result, while the event loop continues.

    A cancelled call does not keep the process from ending, unlike with asyncio's own threads.
    """
    return await asyncio.get_running_loop().run_in_executor(THREADS, function, *args)


class _Threads(Executor):
    """Starts a thread for each call."""

    def submit(self, fn: Callable[..., T], /, *args: Any) -> "Future[T]":  # type: ignore[override]
        future: Future[T] = Future()
        threading.Thread(target=_settle, args=(future, partial(fn, *args)), daemon=True).start()
        return future


THREADS = _Threads()


def _settle(future: "Future[T]", call: Callable[[], T]) -> None:
    try:
        result = call()
    except BaseException as error:
        settle = partial(future.set_exception, error)
    else:
        settle = partial(future.set_result, result)
    with suppress(InvalidStateError):  # the caller was cancelled
        settle()


class StopFlag:
    """A stop request, checked between steps and in long waits."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Request a stop at the next safe point."""
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        if self._event.is_set():
            raise StopRequested

    async def wait_or(self, awaitable: Awaitable[T]) -> T:
        """Return the awaitable's result. If the flag is set first, cancel it and raise `StopRequested`."""
        work = asyncio.ensure_future(awaitable)
        flag = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({work, flag}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise StopRequested
            return work.result()
        finally:
            for future in (work, flag):
                if not future.done():
                    future.cancel()


@dataclass(frozen=True, kw_only=True)
class Waits:
    """The waits of a loop: `stage` in messages, the deadline of each wait, and the deadline of a push of so many bytes."""

    stage: str
    stop: StopFlag
    limit: Deadline
    push_limit: Callable[[int], Deadline]
    last_restart_at: Callable[[], float] = lambda: 0.0
    """Time of the last failure or restart of a rollout worker, on the monotonic clock. See `within`."""

    async def within(self, step: int, name: str, awaitable: Awaitable[T], *, limit: Deadline | None = None) -> T:
        """Wait for a result that messages call `name`."""
        stage = f"{self.stage} step {step}"
        return await within(limit or self.limit, awaitable, stage=stage, waiting_for=name)

    async def wait_for_groups(
        self,
        step: int,
        answers: Awaitable[T],
        *,
        waiting_for: str | Callable[[], str],
        last_progress: Callable[[], float],
    ) -> T:
        """Wait for groups of the workers, or for the stop of the run."""
        waiting, stage = self.stop.wait_or(answers), f"{self.stage} step {step}"
        return await within(
            self.limit,
            waiting,
            stage=stage,
            waiting_for=waiting_for,
            last_progress=last_progress,
            last_restart_at=self.last_restart_at,
        )

"""Scripts scored by several processes, in order. A dead or hung process is replaced and its script is retried."""

import multiprocessing
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from time import monotonic

from temper.envs.core.errors import Failure, FailureKind
from temper.envs.core.task import Task
from temper.envs.transcript import TranscriptScore, score_turns

Script = tuple[Task, list[str]]
"""A task and the model's turns."""
AHEAD = 8
"""Scripts read ahead for each process."""
START_S = 120.0
DEADLINE_S = 300.0
ATTEMPTS = 3


@dataclass(slots=True, kw_only=True)
class _Job:
    script: Script
    attempts: int = 0
    scored: TranscriptScore | None = None


class ScoringPool:
    """`workers` processes, each with its own sandbox and graders. Use as a context manager.

    A script that takes longer than `deadline_s` seconds counts as hung.
    """

    def __init__(self, workers: int, *, deadline_s: float = DEADLINE_S) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}. It must be at least 1")
        self._deadline_s = deadline_s
        self._processes = [_Worker() for _ in range(workers)]

    def scores(self, scripts: Iterable[Script]) -> Generator[TranscriptScore]:
        """Yield the score of each script, in order.

        If its process dies or hangs, a script is retried in a new one. After three attempts it is a failure of kind `worker`.
        Raise `RuntimeError` if a process cannot start.
        """
        given = (_Job(script=script) for script in scripts)
        ordered, waiting = deque[_Job](), deque[_Job]()
        try:
            while True:
                while len(ordered) < len(self._processes) * AHEAD and (job := next(given, None)) is not None:
                    ordered.append(job)
                    waiting.append(job)
                if not ordered:
                    return
                for worker in self._processes:
                    if waiting and worker.idle:
                        worker.begin(waiting.popleft(), self._deadline_s)
                waiting.extendleft(self._lost())
                while ordered and (scored := ordered[0].scored) is not None:
                    ordered.popleft()
                    yield scored
        finally:  # the caller may stop early
            self._processes = [worker if worker.job is None else worker.replaced() for worker in self._processes]

    def _lost(self) -> list[_Job]:
        """Wait for the next answers. Return the jobs to retry, whose process died or hung."""
        lost = []
        busy = [worker for worker in self._processes if not worker.idle]
        soonest = min(worker.until for worker in busy)
        ready = wait([worker.pipe for worker in busy], timeout=max(0.0, soonest - monotonic()))
        for place, worker in enumerate(self._processes):
            if worker.pipe in ready and worker.receives():
                continue
            if worker.pipe in ready or (not worker.idle and monotonic() > worker.until):
                job = worker.job
                if job is None:
                    raise RuntimeError("a grading process ended at its start. See its own output for the reason")
                self._processes[place] = worker.replaced()
                job.attempts += 1
                if job.attempts < ATTEMPTS:
                    lost.append(job)
                    continue
                message = f"the grading process died or hung {ATTEMPTS} times"
                job.scored = TranscriptScore(reward=None, failure=Failure(kind=FailureKind.WORKER, message=message))
        return lost

    def close(self) -> None:
        """End the processes."""
        for worker in self._processes:
            worker.close()

    def __enter__(self) -> "ScoringPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker:
    """A process that scores one script at a time. It is busy until it reports that it is ready."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self.job: _Job | None = None
        self.idle = False
        self.until = monotonic() + START_S

    def begin(self, job: _Job, deadline_s: float) -> None:
        self.job, self.idle = job, False
        self.until = monotonic() + deadline_s
        with suppress(OSError):  # it died while it was idle, which the next `receives` finds
            self.pipe.send(job.script)

    def receives(self) -> bool:
        """Receive the message of the process. Return False if it has died."""
        try:
            scored: TranscriptScore | None = self.pipe.recv()
        except (EOFError, OSError):
            return False
        if self.job is not None:
            self.job.scored = scored
        self.job, self.idle = None, True
        return True

    def replaced(self) -> "_Worker":
        """End the process and return a new one."""
        self.close()
        return _Worker()

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _serve(pipe: Connection) -> None:
    """Report that all is imported, then score scripts until the other end is gone."""
    pipe.send(None)
    with suppress(EOFError):
        while True:
            pipe.send(score_turns(*pipe.recv()))

"""Scripts scored by several processes, in order; a process that dies or hangs loses nothing."""

import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from envs.core.failure import Failure, FailureKind
from envs.core.task import Task
from envs.playback import Scored, score

Script = tuple[Task, list[str]]
"""A task and the model's turns."""
AHEAD = 8
DEADLINE_S = 300.0
ATTEMPTS = 2


@dataclass(slots=True, kw_only=True)
class _Job:
    task: Task
    turns: list[str]
    future: "Future[Scored] | None"
    attempts: int = 0

    @property
    def scored(self) -> bool:
        future = self.future
        return future is not None and future.done() and not future.cancelled() and future.exception() is None


class ScoringPool:
    """`workers` processes, each with its own sandbox and graders. Use as a context manager."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}; it must be at least 1")
        self.workers = workers
        self._pool = self._fresh()

    def _fresh(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.workers, mp_context=multiprocessing.get_context("spawn"))

    def scores(self, scripts: Iterable[Script]) -> Iterator[Scored]:
        """Yield the score of each script, in their order.

        Where a process dies or hangs, the scripts that were not done are scored one by one, so that the one at fault
        is known by itself: it becomes a failure of type `worker` after two more attempts.
        """
        jobs: deque[_Job] = deque()
        for task, turns in scripts:
            jobs.append(_Job(task=task, turns=turns, future=self._submit(task, turns)))
            if len(jobs) > self.workers * AHEAD:
                yield self._first(jobs)
        while jobs:
            yield self._first(jobs)

    def _submit(self, task: Task, turns: list[str]) -> "Future[Scored] | None":
        """Submit a script; None where the pool is broken: the oldest job will find that out and start a new one."""
        try:
            return self._pool.submit(score, task, turns)
        except BrokenProcessPool:
            return None

    def _first(self, jobs: deque[_Job]) -> Scored:
        job = jobs[0]
        while job.attempts <= ATTEMPTS:
            job.future = job.future or self._submit(job.task, job.turns)
            try:
                if job.future is not None:
                    scored = job.future.result(timeout=DEADLINE_S)
                    jobs.popleft()
                    return scored
            except (BrokenProcessPool, TimeoutError):
                job.attempts += 1
            self._restart(jobs)
        jobs.popleft()
        said = f"the grading process died or hung {ATTEMPTS + 1} times"
        return Scored(reward=None, failure=Failure(kind=FailureKind.WORKER, message=said))

    def _restart(self, jobs: deque[_Job]) -> None:
        self.close()
        self._pool = self._fresh()
        for job in jobs:
            if not job.scored:
                job.future = None

    def close(self) -> None:
        """End the processes."""
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()

    def __enter__(self) -> "ScoringPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

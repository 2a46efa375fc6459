"""Limits the number of restarts of a process."""

from collections import deque
from collections.abc import Callable
from time import monotonic

from temper.envs.core.process import ProcessDied

TOGETHER_S = 10.0
"""Failures of a rollout worker and its replacement within these seconds count as one."""


class TooManyRestarts(ProcessDied):
    """A process failed more often than it may be replaced. The message lists the failures."""


class RestartLimit:
    """Counts the failures of each process in a time window. One too many ends the run.

    Each process has its own count, so the limit does not depend on the number of workers.
    """

    def __init__(
        self,
        most: int,
        *,
        window_s: float,
        together_s: float = 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Allow `most` failures of a process and its replacements within any `window_s` seconds.

        Failures within `together_s` seconds count as one.
        """
        self._most = most
        self._window_s = window_s
        self._together_s = together_s
        self._clock = clock
        self._failures: dict[int, deque[tuple[float, list[str]]]] = {}

    def count(self, error: BaseException, *, place: int = 0) -> None:
        """Count a failure of the process in this place. Raise `TooManyRestarts` if it failed too often in the window."""
        now, failures = self._clock(), self._failures.setdefault(place, deque())
        if failures and now - failures[-1][0] < self._together_s:
            failures[-1][1].append(str(error))
            return
        failures.append((now, [str(error)]))
        while failures[0][0] < now - self._window_s:
            failures.popleft()
        if len(failures) > self._most:
            listed = "; ".join(f"{now - at:.0f} s ago: {', '.join(texts)}" for at, texts in failures)
            raise TooManyRestarts(
                f"{len(failures)} failures of one process within {self._window_s:.0f} s, more than "
                f"supervision.restarts={self._most} ({listed}); rerun the same command to resume from the last "
                f"checkpoint"
            ) from error

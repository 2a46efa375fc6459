"""How often a process may be replaced before a run gives up."""

from collections import deque
from collections.abc import Callable
from time import monotonic

from temper.envs.core.process import ProcessDied

TOGETHER_S = 10.0
"""Seconds within which deaths of a rollout worker and of what took its place count as one."""


class TooManyRestarts(ProcessDied):
    """Processes died more often than they may be replaced. The message names the deaths."""


class RestartLimit:
    """Counts the deaths of each process over a window of time; the one that is too much ends the run.

    Each has a count of its own, so that a fleet may lose as many a process as a pair of them may, however many it has.
    """

    def __init__(
        self,
        most: int,
        *,
        window_s: float,
        together_s: float = 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Allow `most` deaths of a process, and of those in its place, within any `window_s` seconds.

        Deaths within `together_s` seconds count as one.
        """
        self._most = most
        self._window_s = window_s
        self._together_s = together_s
        self._clock = clock
        self._deaths: dict[int, deque[tuple[float, list[str]]]] = {}

    def count(self, error: BaseException, *, place: int = 0) -> None:
        """Count a death of the process that has this place. Raise `TooManyRestarts` where it died too often in the window."""
        now, deaths = self._clock(), self._deaths.setdefault(place, deque())
        if deaths and now - deaths[-1][0] < self._together_s:
            deaths[-1][1].append(str(error))
            return
        deaths.append((now, [str(error)]))
        while deaths[0][0] < now - self._window_s:
            deaths.popleft()
        if len(deaths) > self._most:
            told = "; ".join(f"{now - at:.0f} s ago: {', '.join(texts)}" for at, texts in deaths)
            raise TooManyRestarts(
                f"{len(deaths)} deaths within {self._window_s:.0f} s in one place, of which "
                f"supervision.restarts={self._most} may be healed ({told}); the same command continues the "
                f"run from its last checkpoint"
            ) from error

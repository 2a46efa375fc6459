"""How often processes may be replaced before a run gives up."""

from collections import deque
from collections.abc import Callable
from time import monotonic

from envs.core.pulse import ProcessDied

TOGETHER_S = 10.0
"""Seconds within which deaths of rollout workers count as one."""


class TooManyRestarts(ProcessDied):
    """Processes died more often than they may be replaced. The message names the deaths."""


class RestartLimit:
    """Counts deaths over a window of time; the one that is too much ends the run."""

    def __init__(
        self,
        most: int,
        *,
        window_s: float,
        together_s: float = 0.0,
        setting: str = "supervision.restarts",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Allow `most` deaths within any `window_s` seconds; `setting` says where that number can be changed.

        Deaths within `together_s` seconds count as one: a machine that goes takes many along.
        """
        self._most = most
        self._window_s = window_s
        self._together_s = together_s
        self._setting = setting
        self._clock = clock
        self._deaths: deque[tuple[float, list[str]]] = deque()

    def count(self, error: BaseException) -> None:
        """Count a death. Raise `TooManyRestarts` where there were too many within the window."""
        now = self._clock()
        if self._deaths and now - self._deaths[-1][0] < self._together_s:
            self._deaths[-1][1].append(str(error))
            return
        self._deaths.append((now, [str(error)]))
        while self._deaths[0][0] < now - self._window_s:
            self._deaths.popleft()
        if len(self._deaths) > self._most:
            deaths = "; ".join(f"{now - at:.0f} s ago: {', '.join(texts)}" for at, texts in self._deaths)
            raise TooManyRestarts(
                f"{len(self._deaths)} deaths within {self._window_s:.0f} s, of which {self._setting}={self._most} may be "
                f"healed ({deaths}); the same command continues the run from its last checkpoint"
            ) from error

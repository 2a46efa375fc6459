"""What is known of one process under watch, and when it counts as stuck."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from temper.envs.core.member import Member
from temper.envs.core.pulse import Pulse
from temper.orchestrator.config.supervision import SupervisionConfig
from temper.orchestrator.session.examination import outputs


class AwakeClock:
    """Counts the seconds in which this process was awake.

    Where it was stopped, asleep or starved itself, the silence of others says nothing: such a pause counts as `most_s`.
    """

    def __init__(self, most_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._most_s = most_s
        self._clock = clock
        self._last = clock()
        self._awake_s = 0.0

    def now(self) -> float:
        """Return the seconds so far; to be asked often."""
        last, self._last = self._last, self._clock()
        self._awake_s += min(self._last - last, self._most_s)
        return self._awake_s


class Watch:
    """Asks one process for its pulse, one question at a time, and judges the answers. Times are of an `AwakeClock`."""

    def __init__(self, member: Member, *, now: float) -> None:
        self.member = member
        self.pulse: Pulse | None = None
        self.answered = now
        self.logs: list[Path] = []
        """What it writes to, where that is on this machine."""
        self.ending: asyncio.Task[None] | None = None
        """The look at it and its end, once it is stuck."""
        self._moved = now
        self._refused = ""
        self._asking: asyncio.Task[Pulse] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether nothing goes on about it. Raises what its end failed with."""
        if self.ending is None or not self.ending.done():
            return self.ending is None
        self.ending.result()
        return True

    @property
    def has_failed(self) -> bool:
        """Whether the look at it, or its end, raised an error."""
        ending = self.ending
        return ending is not None and ending.done() and not ending.cancelled() and ending.exception() is not None

    def tick(self, now: float, config: SupervisionConfig) -> str | None:
        """Take the answer if there is one, ask again, and return what is wrong, with the setting that says so."""
        self._take(now)
        self._ask()
        silent, stalled = now - self.answered, now - self._moved
        if silent > config.silent_s:
            return f"no answer for {silent:.0f} s (supervision.silent_s={config.silent_s:g}){self._refused}"
        if self.pulse is not None and self.pulse.doing and stalled > config.stalled_s:
            return f"{self.pulse.doing}: nothing done for {stalled:.0f} s (supervision.stalled_s={config.stalled_s:g})"
        return None

    async def is_well(self, now: Callable[[], float], config: SupervisionConfig) -> bool:
        """Ask once more, wait for the answer as long as between two looks, and return whether nothing is wrong any more."""
        self._take(now())
        await asyncio.wait({self._ask()}, timeout=config.pulse_s)
        return self.tick(now(), config) is None

    def close(self) -> None:
        """Ask no more."""
        for task in (self._asking, self.ending):
            if task is not None:
                task.cancel()

    def _ask(self) -> "asyncio.Task[Pulse]":
        """Return the question that is open, a new one where the last was answered."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._pulse())
        return self._asking

    async def _pulse(self) -> Pulse:
        return await self.member.pulse()

    def _take(self, now: float) -> None:
        if self._asking is None or not self._asking.done():
            return
        asking, self._asking = self._asking, None
        try:
            pulse = asking.result()
        except Exception as error:  # who waits for its work hears of it; where nobody does it stays silent: a breach
            self._refused = f"; its last answer was {type(error).__name__}: {error}"
            return
        place = self.member.place
        if self.pulse is None and place is not None and place.node is None:
            self.logs = outputs(place.pid)
        if self.pulse is None or not pulse.doing or pulse.progress != self.pulse.progress:
            self._moved = now
        self.pulse, self.answered, self._refused = pulse, now, ""

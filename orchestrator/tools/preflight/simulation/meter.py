"""Where the time of a simulated run goes: at every moment one cause is what the run waits for, so that causes add up to it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

TAIL_BELOW = 0.5
"""Where fewer sequences run than this share of those that could, the run waits for the longest answers."""


class Cause(Enum):
    """What a run waits for."""

    GENERATING = "generating"  # engines are full, or have all that is in flight
    PUSHING = "pushing"  # engines stand still while they load weights
    LEARNING = "learning"  # the learner works, and the engines have little to do meanwhile
    HEALING = "healing"  # fewer than half of the engines serve
    LONGEST = "the longest answers"  # few sequences run, on engines that could have more


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Sums over time: virtual seconds in all and by cause, of the learner at work, and those of all engines together."""

    total: float = 0.0
    learner: float = 0.0
    engines: float = 0.0
    """Engine seconds with at least one sequence, and not at a standstill."""
    sequences: float = 0.0
    """Sequence seconds."""
    down: float = 0.0
    """Engine seconds between a death and the successor's readiness."""
    causes: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(Cause, 0.0))

    def since(self, before: "Seconds") -> "Seconds":
        """Return what came since an earlier moment."""
        return Seconds(
            total=self.total - before.total,
            learner=self.learner - before.learner,
            engines=self.engines - before.engines,
            sequences=self.sequences - before.sequences,
            down=self.down - before.down,
            causes={cause: seconds - before.causes[cause] for cause, seconds in self.causes.items()},
        )


class FleetMeter:
    """Adds up what engines and learner do; whoever changes one of its counts calls `count` before."""

    def __init__(self, *, engines: int, most: int, in_flight: int, clock: Callable[[], float]) -> None:
        """An engine runs at most `most` sequences at once, and there are `in_flight` in all."""
        self._engines, self._most, self._in_flight = engines, most, in_flight
        self._clock = clock
        self._counted = clock()
        self._causes = dict.fromkeys(Cause, 0.0)
        self._total = self._learner = self._busy = self._sequences = self._down = 0.0
        self.learning = False
        """Whether the learner is at work."""
        self.busy = self.sequences = self.still = self.down = 0
        """Engines that generate, their sequences, engines that load weights, engines that start again."""

    def count(self) -> None:
        """Add the time since the last call, in which the counts were as they are."""
        now = self._clock()
        passed = now - self._counted
        if passed <= 0:
            return
        self._counted = now
        self._total += passed
        self._learner += passed * self.learning
        self._busy += passed * self.busy
        self._sequences += passed * self.sequences
        self._down += passed * self.down
        self._causes[self._cause()] += passed

    def seconds(self) -> Seconds:
        """Return the sums up to now."""
        self.count()
        return Seconds(
            total=self._total,
            learner=self._learner,
            engines=self._busy,
            sequences=self._sequences,
            down=self._down,
            causes=dict(self._causes),
        )

    def _cause(self) -> Cause:
        serving = self._engines - self.down
        room = min(serving * self._most, self._in_flight)
        if self.still:
            return Cause.PUSHING
        if self.sequences and self.sequences >= TAIL_BELOW * room:
            return Cause.GENERATING
        if self.learning:
            return Cause.LEARNING
        return Cause.HEALING if serving < self._engines / 2 else Cause.LONGEST

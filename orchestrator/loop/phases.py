"""Whose shift it is on devices that the engines and the learner share. A step of the loop on them:

    sampling    the engines have weights and cache there, the learner has nothing
    learning    the learner has weights and states there, the engines have nothing; a checkpoint is saved in this shift too
    pushing     the learner has its weights alone there, to push from, and the engines theirs, to load into

Who gives comes first, then who takes. `orchestrator/session/shared_shifts.py` makes them work in shifts.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What lies on the devices in one shift: of the engines weights and cache, of the learner weights and states."""

    name: str
    engine_weights: bool
    cache: bool
    learner_weights: bool
    states: bool


SAMPLING = Shift(name="sampling", engine_weights=True, cache=True, learner_weights=False, states=False)
LEARNING = Shift(name="learning", engine_weights=False, cache=False, learner_weights=True, states=True)
PUSHING = Shift(name="pushing", engine_weights=True, cache=False, learner_weights=True, states=False)


class Shifts:
    """Asked before each part of a step. This one lets all have their devices for themselves, all the time."""

    async def begin(self, shift: Shift) -> None:
        """Begin a shift, where it is not that shift already; the one before is over."""

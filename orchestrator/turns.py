"""Whose turn it is on devices that the engines and the learner share. A step of the loop on them:

    sampling    the engines have weights and cache there, the learner has nothing
    learning    the learner has weights and states there, the engines have nothing; a checkpoint is saved in this turn too
    pushing     the learner has its weights alone there, to push from, and the engines theirs, to load into

Who gives comes first, then who takes. `orchestrator/session/shared_turns.py` makes them take turns.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What lies on the devices in one turn: of the engines weights and cache, of the learner weights and states."""

    name: str
    engine_weights: bool
    cache: bool
    learner_weights: bool
    states: bool


SAMPLING = Turn(name="sampling", engine_weights=True, cache=True, learner_weights=False, states=False)
LEARNING = Turn(name="learning", engine_weights=False, cache=False, learner_weights=True, states=True)
PUSHING = Turn(name="pushing", engine_weights=True, cache=False, learner_weights=True, states=False)


class Turns:
    """Asked before each part of a step. This one lets all have their devices for themselves, all the time."""

    async def begin(self, turn: Turn) -> None:
        """Begin a turn, where it is not that turn already; the one before is over."""

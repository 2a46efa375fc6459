"""What there is of a group in flight: enough for another worker, in another process, to go on where it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from temper.rollout.engines.protocol import Completion
from temper.rollout.trajectory import Group, Ticket, Times, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunTurn:
    """A turn that the environment has not answered yet: the ids that were new to the engine, and what was sampled since.

    `whole` says that nothing is left to be sampled; until then `said.finished` means nothing.
    """

    context_ids: tuple[int, ...]
    said: Completion
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunEpisode:
    """An episode in flight: its answered turns, with what the environment said to each, and the turn that it is in.

    `seconds` and `times` are what it took so far, as those of a `Trajectory`.
    """

    turns: tuple[Turn, ...]
    turn: BegunTurn | None
    seconds: float
    times: Times

    @property
    def tokens(self) -> int:
        """Tokens that were sampled so far."""
        return sum(len(turn.sampled_ids) for turn in self.turns) + (len(self.turn.said.token_ids) if self.turn else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunGroup:
    """One attempt at a group in flight, its finished and its unfinished episodes by the number of the sample.

    What is in neither has not begun. `before` is what the attempts before it left.
    """

    ticket: Ticket
    attempt: int
    finished: Mapping[int, Trajectory] = field(default_factory=dict)
    unfinished: Mapping[int, BegunEpisode] = field(default_factory=dict)
    before: Group | None = None

    @property
    def empty(self) -> bool:
        """Whether it has nothing that would be lost."""
        return not (self.finished or self.unfinished or self.before)

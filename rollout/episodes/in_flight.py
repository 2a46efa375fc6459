"""An episode while it is played, and what there is of it at any moment."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from temper.envs.core.clock import Clock
from temper.envs.core.task import Task
from temper.envs.play import Play
from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.begun import BegunEpisode, BegunTurn
from temper.rollout.episodes.stopwatch import Stopwatch
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.trajectory import NO_TIME, Carried, Times, Turn

SoFar = Callable[[str], Completion | None]
"""Tells what the engine has sampled for the call of this name."""


@dataclass(kw_only=True, slots=True)
class Episode:
    """One episode: what it plays, its answered turns, and the turn that it is in.

    `name` is that of its turns at the engine, `sampling` how they are drawn. `begun` is what there is of it from a process
    before, until the environment is where it was; `carried` says what became of that.
    """

    task: Task
    seed: int
    name: str
    play: Play
    clock: Clock
    sampling: Sampling = PLAIN
    begun: BegunEpisode | None = None
    carried: Carried = Carried.NO
    watch: Stopwatch = field(default_factory=Stopwatch)
    turns: list[Turn] = field(default_factory=list)
    context: tuple[int, ...] | None = None
    """The ids that are new to the engine in the turn that it is in; None between two turns."""
    before: Completion | None = None
    """What was sampled of this turn in a process before."""
    said: Completion | None = None
    """This turn, once it is whole."""
    since: float = field(default_factory=time.monotonic)
    earlier_s: float = 0.0
    earlier: Times = NO_TIME

    @property
    def request(self) -> str:
        """The name of the present turn at the engine."""
        return f"{self.name}.{len(self.turns)}"

    @property
    def seconds(self) -> float:
        """What it took so far."""
        return self.earlier_s + time.monotonic() - self.since

    @property
    def times(self) -> Times:
        """What these seconds went into."""
        return self.earlier + self.watch.times

    def go_on(self, begun: BegunEpisode) -> None:
        """Take up what was begun: its environment is where it was."""
        self.turns.extend(begun.turns)
        self.earlier_s, self.earlier = begun.seconds, begun.times
        if begun.turn is not None:
            self.before = begun.turn.said
            self.said = begun.turn.said if begun.turn.whole else None
        self.begun, self.carried = None, Carried.ON

    def begin_again(self, play: Play) -> None:
        """Forget what was begun: a new environment plays it from the first turn."""
        self.play = play
        self.begun, self.carried = None, Carried.AGAIN

    def end_turn(self, turn: Turn) -> None:
        """Take in a turn that the environment has answered."""
        self.turns.append(turn)
        self.context = self.before = self.said = None

    def so_far(self, of_engine: SoFar) -> BegunEpisode | None:
        """Return what another process needs to go on; None where nothing was sampled yet."""
        if self.begun is not None:
            return self.begun
        turn = None
        if self.context is not None and (said := self.said or self._sampled(of_engine(self.request))) is not None:
            turn = BegunTurn(context_ids=self.context, said=said, whole=self.said is not None)
        if turn is None and not self.turns:
            return None
        return BegunEpisode(turns=tuple(self.turns), turn=turn, seconds=self.seconds, times=self.times)

    def _sampled(self, since: Completion | None) -> Completion | None:
        if self.before is None or since is None:
            return self.before or since
        return self.before.then(since)

"""One attempt at a group: episodes of one task at once, some of which other processes may have begun."""

import asyncio
from collections.abc import Sequence

from temper.rollout.episodes.begun import BegunGroup
from temper.rollout.episodes.episode import EpisodeRunner
from temper.rollout.episodes.in_flight import Episode
from temper.rollout.trajectory import Group, Ticket, Trajectory


class Attempt:
    """The episodes of a ticket in one worker."""

    def __init__(
        self, ticket: Ticket, runner: EpisodeRunner, *, attempt: int, seeds: Sequence[int], begun: BegunGroup | None
    ) -> None:
        """There are as many episodes as seeds; what was begun beyond them is left out."""
        self._ticket = ticket
        self._runner = runner
        self._attempt = attempt
        finished = {} if begun is None else begun.finished
        unfinished = {} if begun is None else begun.unfinished
        samples = range(len(seeds))
        self._finished: dict[int, Trajectory] = {n: finished[n] for n in samples if n in finished}
        self._playing: dict[int, Episode] = {
            n: runner.episode(ticket.task, seed=seeds[n], sampling=ticket.sampling, begun=unfinished.get(n))
            for n in samples
            if n not in finished
        }

    async def play(self) -> Group:
        """Play every episode to its end; return the answers in the order of the samples."""
        await asyncio.gather(*(self._one(sample, episode) for sample, episode in list(self._playing.items())))
        return Group.of(self._ticket, [answer for _, answer in sorted(self._finished.items())])

    async def _one(self, sample: int, episode: Episode) -> None:
        self._finished[sample] = await self._runner.play(episode)
        del self._playing[sample]

    def so_far(self) -> BegunGroup:
        """Return what there is of it now."""
        unfinished = {sample: self._runner.so_far(episode) for sample, episode in self._playing.items()}
        return BegunGroup(
            ticket=self._ticket,
            attempt=self._attempt,
            finished=dict(self._finished),
            unfinished={sample: one for sample, one in unfinished.items() if one is not None},
        )

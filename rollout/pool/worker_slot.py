"""A place in the pool: the worker that holds it now, what it is doing, and who comes after it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from temper.envs.core.failure import FailureKind
from temper.envs.core.member import MemberNow, MemberState
from temper.envs.core.pulse import WorkerDied
from temper.rollout.pool.pool_worker import PoolWorker
from temper.rollout.pool.served_weights import Newcomer
from temper.rollout.trajectory import Group

BROKEN_AFTER = 3
"""After so many groups in a row of which the engine generated no answer it is taken for dead."""
LONGEST_STREAK = 10


class WorkerState(Enum):
    """Where the worker of a slot is in its life."""

    STARTING = "starting"  # placed, and its engine started
    JOINING = "joining"  # takes the weights that the others serve
    SERVING = "serving"  # is given groups
    DRAINING = "draining"  # is given none any more, and leaves once its last one is finished


@dataclass(eq=False, kw_only=True, slots=True)
class WorkerSlot:
    """One of the pool's places. `served` says whether a worker of it ever did; `streak` counts the groups in a row that brought
    no answer for reasons outside the model.
    """

    number: int
    worker: PoolWorker
    state: WorkerState = WorkerState.STARTING
    restarts: int = 0
    served: bool = False
    streak: int = 0
    tickets: list[int] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    death: WorkerDied | None = None
    given: asyncio.Task[None] | None = None
    """The delivery of weights to this worker alone, while there is one."""
    load: int = 0
    """How many groups it counts as having: a worker that fails at once is free at once, and would attract all work."""

    def begin(self, worker: PoolWorker) -> None:
        """Give the place to a newcomer."""
        self.worker, self.state, self.death = worker, WorkerState.STARTING, None
        self.streak, self.tickets, self.over = 0, [], asyncio.Event()
        self._weigh()

    def end(self, worker: PoolWorker, death: WorkerDied) -> None:
        """Take no more from a worker that died, or is taken for dead; nothing where another one has its place already."""
        if self.worker is worker and not self.over.is_set():
            self.death = death
            if self.state is not WorkerState.DRAINING:
                self.state = WorkerState.STARTING
            self.over.set()
            worker.kill()

    @contextmanager
    def running(self, ticket: int) -> Iterator[PoolWorker]:
        """Count a group as in flight during the block; gives the worker."""
        worker, tickets = self.worker, self.tickets
        tickets.append(ticket)
        self._weigh()
        try:
            yield worker
        finally:
            tickets.remove(ticket)
            self._weigh()
            if self.state is WorkerState.DRAINING and not tickets:
                self.over.set()

    def learn(self, worker: PoolWorker, group: Group) -> None:
        """Take note of what came of a group. One whose engine generates nothing is as good as dead."""
        if self.worker is not worker:
            return
        if group.trajectories or not group.worth_retrying:
            self.streak = 0
            self._weigh()
            return
        self.streak = min(self.streak + 1, LONGEST_STREAK)
        self._weigh()
        kinds = {failure.kind for failure in group.failures}
        if self.streak >= BROKEN_AFTER and kinds == {FailureKind.ENGINE}:
            said = group.failures[-1].message
            self.end(worker, WorkerDied(f"{worker.name} generated nothing for {self.streak} groups in a row: {said}"))

    def _weigh(self) -> None:
        self.load = len(self.tickets) + 2**self.streak - 1

    @property
    def takes_weights(self) -> bool:
        return self.state is not WorkerState.STARTING and not self.over.is_set()

    @property
    def taker(self) -> PoolWorker | Newcomer:
        """The worker as it takes the weights of all others."""
        return self.worker if self.given is None else Newcomer(worker=self.worker, given=self.given)

    def now(self, *, asleep: bool = False) -> MemberNow:
        """Return what its worker does; `asleep` says whether those that serve are that."""
        state: MemberState = "starting"
        if self.state is WorkerState.SERVING:
            state = "asleep" if asleep else "serving"
        elif self.state is WorkerState.DRAINING:
            state = "draining"
        return MemberNow(
            name=self.worker.name,
            state=state,
            member=self.worker,
            watched=self.state is not WorkerState.STARTING,
            tickets=tuple(self.tickets),
            restarts=self.restarts,
        )

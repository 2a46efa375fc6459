"""The slots of the pool, and a worker in each: started, brought to the weights that are served, replaced when it dies."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from temper.envs.core.clock import loop_time
from temper.envs.core.errors import FailureKind, describe_error
from temper.envs.core.process import ProcessDied, ProcessInfo, ProcessState, WorkerDied
from temper.rollout.pool.restarts import RestartLimit
from temper.rollout.pool.served_weights import JoiningWorker, Served, ServedWeights
from temper.rollout.pool.worker_handle import WorkerHandle
from temper.rollout.trajectory import Group, WeightVersion
from temper.rollout.weights.manifest import NoLongerHeld

BROKEN_AFTER = 3
"""After so many groups in a row of which the engine generated no answer it is taken for dead."""
LONGEST_STREAK = 10
JOINS = 10
JOIN_AGAIN_S = 2.0
"""How often a newcomer tries to get the weights of the others, and the seconds between: the learner may be at work on the
next ones, with which it is given them too."""


class WorkerState(Enum):
    """Where the worker of a slot is in its life."""

    STARTING = "starting"  # placed, and its engine started
    JOINING = "joining"  # takes the weights that the others serve
    SERVING = "serving"  # is given groups
    DRAINING = "draining"  # is given none any more, and leaves once its last one is finished


@dataclass(eq=False, kw_only=True, slots=True)
class WorkerSlot:
    """One of the pool's places. `served` is true once a worker of it has served. `streak` counts the groups in a row that
    brought no answer for reasons outside the model.
    """

    number: int
    worker: WorkerHandle
    state: WorkerState = WorkerState.STARTING
    restarts: int = 0
    served: bool = False
    streak: int = 0
    tickets: list[int] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    death: WorkerDied | None = None
    joining: asyncio.Task[None] | None = None
    """The delivery of weights to this worker alone, while there is one."""
    load: int = 0
    """How many groups it counts as having: a worker that fails at once is free at once, and would attract all work."""

    def begin(self, worker: WorkerHandle) -> None:
        self.worker, self.state, self.death = worker, WorkerState.STARTING, None
        self.streak, self.tickets, self.over = 0, [], asyncio.Event()
        self._weigh()

    def end(self, worker: WorkerHandle, death: WorkerDied) -> None:
        """Accept no more results from a worker that died or counts as dead. Do nothing if it was replaced already."""
        if self.worker is worker and not self.over.is_set():
            self.death = death
            if self.state is not WorkerState.DRAINING:
                self.state = WorkerState.STARTING
            self.over.set()
            worker.kill()

    @contextmanager
    def running(self, ticket: int) -> Iterator[WorkerHandle]:
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

    def learn(self, worker: WorkerHandle, group: Group) -> None:
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
    def receiver(self) -> WorkerHandle | JoiningWorker:
        return self.worker if self.joining is None else JoiningWorker(worker=self.worker, joining=self.joining)

    def now(self, *, asleep: bool = False) -> ProcessInfo:
        """Return what its worker does; `asleep` says whether those that serve are that."""
        state: ProcessState = "starting"
        if self.state is WorkerState.SERVING:
            state = "asleep" if asleep else "serving"
        elif self.state is WorkerState.DRAINING:
            state = "draining"
        return ProcessInfo(
            name=self.worker.name,
            state=state,
            process=self.worker,
            watched=self.state is not WorkerState.STARTING,
            tickets=tuple(self.tickets),
            restarts=self.restarts,
        )


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """How dead workers are replaced: how often, and how many seconds one may take to start, or to read a model then.

    `late` ends one that does not start in time, told what is wrong. `died` learns the name of each that is replaced and its
    death, `healed` the name and what its successor serves; `tell` says all else to people.
    """

    restarts: RestartLimit = field(default_factory=lambda: RestartLimit(3, window_s=1800.0))
    start_s: float = 300.0
    on_late_start: Callable[[WorkerHandle, str], Awaitable[None]] | None = None
    on_failure: Callable[[str, WorkerDied], None] = lambda name, death: None
    on_restart: Callable[[str, str], None] = lambda name, what: None
    log: Callable[[str], None] = lambda line: None


class SlotKeeper:
    """Has a task for each slot. Gives up with the first error that is not a worker's death, or after too many of them."""

    def __init__(
        self,
        spawn: Callable[[int], WorkerHandle],
        *,
        weights: ServedWeights,
        restart_policy: RestartPolicy,
        on_leave: Callable[[WorkerSlot], None],
    ) -> None:
        """`spawn` makes the worker of a slot by its number; `on_leave` is told of a slot whose worker has left."""
        self._spawn = spawn
        self._weights = weights
        self._restart_policy = restart_policy
        self._on_leave = on_leave
        self._tasks: dict[WorkerSlot, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._given_up: Exception | None = None
        self._has_served = self._complete = False
        self._starting: set[WorkerSlot] = set()
        self.awake = True
        """Whether the engines have their devices: where they have not, none starts, and none is given weights by itself."""
        self.restarted_at = 0.0
        """When a worker died, or took the place of another one, last, on the monotonic clock."""

    def keep(self, number: int) -> WorkerSlot:
        """Return a slot in which there will be a worker from now on."""
        slot = WorkerSlot(number=number, worker=self._spawn(number))
        self._tasks[slot] = asyncio.create_task(self._keep(slot))
        return slot

    async def wait_all_serving(self) -> None:
        """Wait until every slot's worker serves for the first time. Raises what made the keeper give up."""
        await self.until(lambda: all(slot.state is WorkerState.SERVING for slot in self._tasks))
        self._complete = True

    def let_go(self, slot: WorkerSlot) -> None:
        """Let a slot's worker finish what it has begun, then leave."""
        if slot.state is not WorkerState.SERVING:  # it has begun nothing, and may wait for a machine that never comes
            slot.worker.kill()
        slot.state = WorkerState.DRAINING
        if not slot.tickets:
            slot.over.set()

    def serves(self, slot: WorkerSlot, worker: WorkerHandle) -> None:
        """Take note that a worker has the weights that all serve."""
        if slot.state is WorkerState.JOINING and slot.worker is worker and not slot.over.is_set():
            slot.state, slot.served, self._has_served = WorkerState.SERVING, True, True
            if slot.restarts:
                self.restarted_at = loop_time()
            self.changed()

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until something is so that slots decide. Raises what made the keeper give up. Whoever asks has the deadline."""
        while not ready():
            self.check()
            await self._changed.wait()
        self.check()

    def check(self) -> None:
        if self._given_up is not None:
            raise self._given_up

    def fall_asleep(self) -> None:
        """Let no engine start from now on, nor be given weights by itself."""
        self.awake = False

    def wake(self) -> None:
        """Let engines start again, and those that serve be given work."""
        self.awake = True
        self.changed()

    @property
    def starting(self) -> bool:
        return bool(self._starting)

    async def wait_settled(self) -> None:
        """Wait until no engine is being started, or given weights by itself, which both have deadlines.

        Raises nothing, also if the keeper has given up.
        """
        while self._starting or any(slot.joining is not None for slot in self._tasks):
            await self._changed.wait()

    async def stop(self, slots: Sequence[WorkerSlot]) -> None:
        """End all workers, those that started by letting them close what they hold."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closing = []
        for slot in slots:
            if slot.takes_weights:
                closing.append(slot.worker.close())
            else:
                slot.worker.kill()
        await asyncio.gather(*closing)

    def changed(self) -> None:
        """Let those look again who wait until something is so."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _serving(self) -> bool:
        return any(slot.state is WorkerState.SERVING for slot in self._tasks)

    async def _keep(self, slot: WorkerSlot) -> None:
        try:
            while (death := await self._life(slot)) is not None:
                if self._complete and not slot.served and self._serving():
                    self._restart_policy.log(f"{death}; it was to be added, and is not: the others go on")
                    break
                self._restart_policy.on_failure(slot.worker.name, death)
                self._restart_policy.restarts.count(death, place=slot.number)
                slot.restarts += 1
                self.restarted_at = loop_time()
                slot.begin(self._spawn(slot.number))
        except Exception as error:
            self._given_up = self._given_up or error
        else:
            self._on_leave(slot)
        finally:
            self._tasks.pop(slot, None)
            self.changed()

    async def _life(self, slot: WorkerSlot) -> WorkerDied | None:
        """Bring a worker up and wait for its end; returns the death that it died, None where it left as it should."""
        worker, began = slot.worker, loop_time()
        living = asyncio.create_task(self._live(slot, worker, began))
        over = asyncio.create_task(slot.over.wait())
        try:
            await asyncio.wait({living, over}, return_when=asyncio.FIRST_COMPLETED)
            if living.done():
                living.result()  # it never just ends: this raises
        except WorkerDied as death:
            slot.end(worker, death)
        finally:
            living.cancel()
            over.cancel()
        if slot.state is not WorkerState.DRAINING:
            return slot.death
        if slot.death is None:
            await worker.close()
        return None

    async def _live(self, slot: WorkerSlot, worker: WorkerHandle, began: float) -> None:
        """Start a worker, let it serve, and wait for its death, which it raises."""
        try:
            await self._wait_placed(worker)
            await self.until(lambda: self.awake)
            started = self._weights.start_on()
            confirmed = await self._start_engine(slot, worker, started)
        except TimeoutError:
            late = f"did not start within {self._restart_policy.start_s:.0f} s"
            if self._restart_policy.on_late_start is not None:
                await self._restart_policy.on_late_start(worker, late)
            raise WorkerDied(f"{worker.name} {late}") from None
        except Exception as error:
            if isinstance(error, WorkerDied) or error is self._given_up or not self._has_served:
                raise  # without one that ever served it is a mistake in the settings, for example
            raise WorkerDied(f"{worker.name} did not start: {describe_error(error)}") from error
        if confirmed != started.version:
            raise WorkerDied(f"{worker.name} started on version {started.version.step} and confirms {confirmed.step}")
        if slot.state is WorkerState.STARTING:
            slot.state = WorkerState.JOINING
            await self._join(slot, worker, started)
            serves = f"serves version {self._weights.now.version.step} after {loop_time() - began:.0f} s"
            if slot.restarts:
                self._restart_policy.on_restart(worker.name, serves)
            elif self._complete:
                self._restart_policy.log(f"{worker.name} {serves}")
        await worker.died()

    async def _start_engine(self, slot: WorkerSlot, worker: WorkerHandle, on: Served) -> WeightVersion:
        assert on.model is not None
        self._starting.add(slot)
        try:
            async with asyncio.timeout(self._restart_policy.start_s):
                return await worker.start(on.model, on.version)
        finally:
            self._starting.discard(slot)
            self.changed()

    async def _wait_placed(self, worker: WorkerHandle) -> None:
        """Wait for room for a worker, without an end while others serve: a machine that comes has room."""
        placing = asyncio.ensure_future(worker.wait_until_running())
        try:
            while not placing.done():
                await asyncio.wait({placing}, timeout=self._restart_policy.start_s)
                if not placing.done():
                    self._restart_policy.log(f"{worker.name} waits for a machine with room")
                    if not self._serving():
                        raise WorkerDied(f"{worker.name} found no machine with room, and no other one serves")
            placing.result()
        finally:
            placing.cancel()

    async def _join(self, slot: WorkerSlot, worker: WorkerHandle, started: Served) -> None:
        """Bring a worker that started to the weights that are served, by itself or with the next ones that all are given."""
        failure: Exception | None = None
        for _ in range(JOINS):
            await self.until(lambda: self.awake or slot.state is not WorkerState.JOINING)
            async with self._weights.lock:  # all may be given others now, this one with them
                if slot.state is not WorkerState.JOINING:
                    return
                if not self.awake:
                    continue
                now = self._weights.now
                giving = self._weights.give(worker, now, started=started, read_s=self._restart_policy.start_s)
                slot.joining = asyncio.create_task(giving)
            try:
                try:
                    await slot.joining
                finally:
                    slot.joining = None
                    self.changed()
                if self.awake and now is self._weights.now:
                    self.serves(slot, worker)
            except WorkerDied:
                raise
            except (ProcessDied, NoLongerHeld):  # the learner, or its successor, has others by now: all are given them
                await self._wait_for_newer(slot, now)
            except Exception as error:
                failure = error
                await asyncio.sleep(JOIN_AGAIN_S)
            if slot.state is not WorkerState.JOINING:
                return
        raise WorkerDied(f"{worker.name} could not be given the weights that the others serve: {failure}") from failure

    async def _wait_for_newer(self, slot: WorkerSlot, than: Served) -> None:
        await self.until(lambda: slot.state is not WorkerState.JOINING or self._weights.now is not than)

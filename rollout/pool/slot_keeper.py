"""The pool's slots: starts a worker in each, brings it to the current weights, and replaces it when it dies."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from temper.envs.core.clock import loop_time
from temper.envs.core.errors import FailureKind, describe_error
from temper.envs.core.process import ProcessDied, ProcessInfo, ProcessState, WorkerDied
from temper.rollout.episodes.worker import WorkerHandle
from temper.rollout.pool.restarts import RestartLimit
from temper.rollout.trajectory import Group, WeightVersion
from temper.rollout.weights.delivery import JoiningWorker, Served, ServedWeights, WorkerEnd
from temper.rollout.weights.manifest import NoLongerHeld

BROKEN_AFTER = 3
"""A worker counts as dead after so many groups in a row without an answer from its engine."""
LONGEST_STREAK = 10
JOINS = 10
JOIN_AGAIN_S = 2.0
"""Attempts of a new worker to get the current weights, and the seconds between them. If the learner already prepares the
next weights, the worker gets those with the others.
"""


class WorkerState(Enum):
    """State of a slot's worker."""

    STARTING = "starting"  # its process and its engine start
    JOINING = "joining"  # it loads the current weights
    SERVING = "serving"  # it gets groups
    DRAINING = "draining"  # it gets no more groups, and leaves after its last one


@dataclass(eq=False, kw_only=True, slots=True)
class WorkerSlot:
    """A place of the pool. `served`: a worker of it has served. `streak` counts groups in a row that all failed outside the
    model.
    """

    number: int
    worker: WorkerHandle
    state: WorkerState = WorkerState.STARTING
    restarts: int = 0
    served: bool = False
    streak: int = 0
    tickets: list[int] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    failure: WorkerDied | None = None
    joining: asyncio.Task[None] | None = None
    """The separate weight load of this worker, while there is one."""
    load: int = 0
    """Number of groups that it counts as having. Failures add to it: a worker that fails fast would attract all work."""

    def begin(self, worker: WorkerHandle) -> None:
        self.worker, self.state, self.failure = worker, WorkerState.STARTING, None
        self.streak, self.tickets, self.over = 0, [], asyncio.Event()
        self._weigh()

    def end(self, worker: WorkerHandle, failure: WorkerDied) -> None:
        """Accept no more results from a failed worker. Do nothing if it was already replaced."""
        if self.worker is worker and not self.over.is_set():
            self.failure = failure
            if self.state is not WorkerState.DRAINING:
                self.state = WorkerState.STARTING
            self.over.set()
            worker.kill()

    @contextmanager
    def running(self, ticket: int) -> Iterator[WorkerHandle]:
        """Count a group as in flight within the block. Yields the worker."""
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

    def record_result(self, worker: WorkerHandle, group: Group) -> None:
        """Record the result of a group. A worker whose engine generates nothing counts as dead."""
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
            message = group.failures[-1].message
            self.end(
                worker, WorkerDied(f"{worker.name} generated nothing for {self.streak} groups in a row: {message}")
            )

    def _weigh(self) -> None:
        self.load = len(self.tickets) + 2**self.streak - 1

    @property
    def takes_weights(self) -> bool:
        return self.state is not WorkerState.STARTING and not self.over.is_set()

    @property
    def receiver(self) -> WorkerEnd:
        return self.worker if self.joining is None else JoiningWorker(worker=self.worker, joining=self.joining)

    def now(self, *, asleep: bool = False) -> ProcessInfo:
        """Return the worker's state. `asleep`: serving workers are asleep."""
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
    """Limits and callbacks for replacing dead workers. `start_s` limits their start, and their reading of a model.

    `on_late_start` ends a worker that did not start in time, with the reason. `on_failure` gets a replaced worker's name
    and failure. `on_restart` gets the name and the served version of its replacement. `log` gets other messages.
    """

    restarts: RestartLimit = field(default_factory=lambda: RestartLimit(3, window_s=1800.0))
    start_s: float = 300.0
    on_late_start: Callable[[WorkerHandle, str], Awaitable[None]] | None = None
    on_failure: Callable[[str, WorkerDied], None] = lambda name, failure: None
    on_restart: Callable[[str, str], None] = lambda name, what: None
    log: Callable[[str], None] = lambda line: None


class SlotKeeper:
    """Runs a task for each slot. Gives up on the first error that is not a worker failure, or after too many failures."""

    def __init__(
        self,
        spawn: Callable[[int], WorkerHandle],
        *,
        weights: ServedWeights,
        restart_policy: RestartPolicy,
        on_leave: Callable[[WorkerSlot], None],
    ) -> None:
        """`spawn` makes the worker of a slot by its number. `on_leave` is called after a slot's worker has left."""
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
        """Whether the engines have their devices. Otherwise none starts or loads weights separately."""
        self.restarted_at = 0.0
        """Time of the last failure or replacement, on the monotonic clock."""

    def keep(self, number: int) -> WorkerSlot:
        """Return a new slot, and start its worker."""
        slot = WorkerSlot(number=number, worker=self._spawn(number))
        self._tasks[slot] = asyncio.create_task(self._keep(slot))
        return slot

    async def wait_all_serving(self) -> None:
        """Wait until every slot's worker serves for the first time. Raises the error on which the keeper gave up."""
        await self.wait_until(lambda: all(slot.state is WorkerState.SERVING for slot in self._tasks))
        self._complete = True

    def let_go(self, slot: WorkerSlot) -> None:
        """Let a slot's worker finish its groups, then leave."""
        if slot.state is not WorkerState.SERVING:  # it has no groups, and may wait for a machine that never comes
            slot.worker.kill()
        slot.state = WorkerState.DRAINING
        if not slot.tickets:
            slot.over.set()

    def serves(self, slot: WorkerSlot, worker: WorkerHandle) -> None:
        """Note that a worker has the current weights."""
        if slot.state is WorkerState.JOINING and slot.worker is worker and not slot.over.is_set():
            slot.state, slot.served, self._has_served = WorkerState.SERVING, True, True
            if slot.restarts:
                self.restarted_at = loop_time()
            self.notify()

    async def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready` returns true. Raises the error on which the keeper gave up. The caller sets the deadline."""
        while not ready():
            self.check()
            await self._changed.wait()
        self.check()

    def check(self) -> None:
        if self._given_up is not None:
            raise self._given_up

    def fall_asleep(self) -> None:
        """Stop starting engines and separate weight loads."""
        self.awake = False

    def wake(self) -> None:
        """Start engines again, and give work to serving ones."""
        self.awake = True
        self.notify()

    @property
    def starting(self) -> bool:
        return bool(self._starting)

    async def wait_settled(self) -> None:
        """Wait until no engine starts or loads weights separately. Both have deadlines.

        Raises nothing, even if the keeper has given up.
        """
        while self._starting or any(slot.joining is not None for slot in self._tasks):
            await self._changed.wait()

    async def stop(self, slots: Sequence[WorkerSlot]) -> None:
        """End all workers. Started ones close their resources first."""
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

    def notify(self) -> None:
        """Wake all tasks in `wait_until`."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _serving(self) -> bool:
        return any(slot.state is WorkerState.SERVING for slot in self._tasks)

    async def _keep(self, slot: WorkerSlot) -> None:
        try:
            while (failure := await self._life(slot)) is not None:
                if self._complete and not slot.served and self._serving():
                    self._restart_policy.log(f"{failure}; it is not added, the other workers continue")
                    break
                self._restart_policy.on_failure(slot.worker.name, failure)
                self._restart_policy.restarts.count(failure, place=slot.number)
                slot.restarts += 1
                self.restarted_at = loop_time()
                slot.begin(self._spawn(slot.number))
        except Exception as error:
            self._given_up = self._given_up or error
        else:
            self._on_leave(slot)
        finally:
            self._tasks.pop(slot, None)
            self.notify()

    async def _life(self, slot: WorkerSlot) -> WorkerDied | None:
        """Start a worker and wait for its end. Return its failure, or None if it left as planned."""
        worker, began = slot.worker, loop_time()
        living = asyncio.create_task(self._live(slot, worker, began))
        over = asyncio.create_task(slot.over.wait())
        try:
            await asyncio.wait({living, over}, return_when=asyncio.FIRST_COMPLETED)
            if living.done():
                living.result()  # it ends only with an error, which this raises
        except WorkerDied as failure:
            slot.end(worker, failure)
        finally:
            living.cancel()
            over.cancel()
        if slot.state is not WorkerState.DRAINING:
            return slot.failure
        if slot.failure is None:
            await worker.close()
        return None

    async def _live(self, slot: WorkerSlot, worker: WorkerHandle, began: float) -> None:
        """Start a worker, let it serve, and raise its failure."""
        try:
            await self._wait_placed(worker)
            await self.wait_until(lambda: self.awake)
            started = self._weights.start_on()
            confirmed = await self._start_engine(slot, worker, started)
        except TimeoutError:
            late = f"did not start within {self._restart_policy.start_s:.0f} s"
            if self._restart_policy.on_late_start is not None:
                await self._restart_policy.on_late_start(worker, late)
            raise WorkerDied(f"{worker.name} {late}") from None
        except Exception as error:
            if isinstance(error, WorkerDied) or error is self._given_up or not self._has_served:
                raise  # before any worker has served, it may be a mistake in the settings
            raise WorkerDied(f"{worker.name} did not start: {describe_error(error)}") from error
        if confirmed != started.version:
            raise WorkerDied(f"{worker.name} started on version {started.version.step}, but confirms {confirmed.step}")
        if slot.state is WorkerState.STARTING:
            slot.state = WorkerState.JOINING
            await self._join(slot, worker, started)
            serves = f"serves version {self._weights.now.version.step} after {loop_time() - began:.0f} s"
            if slot.restarts:
                self._restart_policy.on_restart(worker.name, serves)
            elif self._complete:
                self._restart_policy.log(f"{worker.name} {serves}")
        await worker.wait_until_dead()

    async def _start_engine(self, slot: WorkerSlot, worker: WorkerHandle, on: Served) -> WeightVersion:
        assert on.model is not None
        self._starting.add(slot)
        try:
            async with asyncio.timeout(self._restart_policy.start_s):
                return await worker.start(on.model, on.version)
        finally:
            self._starting.discard(slot)
            self.notify()

    async def _wait_placed(self, worker: WorkerHandle) -> None:
        """Wait for a machine with room for a worker, without limit while others serve."""
        placing = asyncio.ensure_future(worker.wait_until_running())
        try:
            while not placing.done():
                await asyncio.wait({placing}, timeout=self._restart_policy.start_s)
                if not placing.done():
                    self._restart_policy.log(f"{worker.name} waits for a machine with room")
                    if not self._serving():
                        raise WorkerDied(f"{worker.name} found no machine with room, and no other worker serves")
            placing.result()
        finally:
            placing.cancel()

    async def _join(self, slot: WorkerSlot, worker: WorkerHandle, started: Served) -> None:
        """Bring a started worker to the current weights, separately or with the next load for all."""
        failure: Exception | None = None
        for _ in range(JOINS):
            await self.wait_until(lambda: self.awake or slot.state is not WorkerState.JOINING)
            async with self._weights.lock:  # meanwhile all, this one included, may have loaded newer weights
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
                    self.notify()
                if self.awake and now is self._weights.now:
                    self.serves(slot, worker)
            except WorkerDied:
                raise
            except (
                ProcessDied,
                NoLongerHeld,
            ):  # the learner, or its replacement, has newer weights, which all workers will load
                await self._wait_for_newer(slot, now)
            except Exception as error:
                failure = error
                await asyncio.sleep(JOIN_AGAIN_S)
            if slot.state is not WorkerState.JOINING:
                return
        raise WorkerDied(f"{worker.name} could not load the weights of the other workers: {failure}") from failure

    async def _wait_for_newer(self, slot: WorkerSlot, than: Served) -> None:
        await self.wait_until(lambda: slot.state is not WorkerState.JOINING or self._weights.now is not than)

"""The rollout workers, seen as one: which of them samples a group, what is tried again, and what all of them confirm.

A worker that dies is replaced (`slot_keeper.py`), and what it was doing is done again from the same seeds by another one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from temper.envs.core.clock import loop_time
from temper.envs.core.process import MemoryUsage, ProcessInfo, WorkerDied
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.pool.served_weights import JoiningWorker, Served, ServedWeights
from temper.rollout.pool.slot_keeper import RestartPolicy, SlotKeeper, WorkerSlot, WorkerState
from temper.rollout.pool.worker_handle import WorkerHandle
from temper.rollout.trajectory import Failure, FailureKind, Group, Stop, Ticket, Trajectory, WeightVersion
from temper.rollout.weights.delivery import Push

T = TypeVar("T")
LOG = logging.getLogger(__name__)
_LOAD = attrgetter("load")
ANSWER_S = 20.0
"""How long a worker may take to list its groups in flight."""
MAX_WORKER_FAILURES = 3
"""Deaths of workers that a ticket may meet: its group fails at the last one, as its task may be the cause."""
Spawn = Callable[[int], WorkerHandle]
"""Makes the worker of a slot, by its number. `WorkerHandle.wait_until_running` and `start` do the slow part."""

OnReissue = Callable[[int, str], None]


def ignore_reissue(number: int, why: str) -> None:
    """Do nothing about a ticket that another worker takes over."""


class RolloutPool:
    """Sends each group to the worker with the fewest in flight. All methods belong to one event loop."""

    def __init__(
        self,
        spawn: Spawn,
        *,
        workers: int,
        weights: ServedWeights,
        retries: int,
        restart_policy: RestartPolicy | None = None,
    ) -> None:
        """`workers` are wanted, which serve `weights` at first; `retries` is how often failed episodes are tried again."""
        restart_policy = restart_policy or RestartPolicy()
        self._weights = weights
        self._retries = retries
        self._log = restart_policy.log
        self._wanted = workers
        self._slots: list[WorkerSlot] = []
        self._partial_groups: dict[int, PartialGroup] = {}
        self.on_reissue: OnReissue = ignore_reissue
        """Told of each ticket that another worker takes over: its number, and why."""
        self._keeper = SlotKeeper(spawn, weights=weights, restart_policy=restart_policy, on_leave=self._slots.remove)

    async def start(self) -> None:
        """Start the workers, and wait until all serve. Ends those that have begun where that fails or is given up."""
        try:
            self.resize(self._wanted)
            await self._keeper.wait_all_serving()
        except BaseException:
            await self._keeper.stop(self._slots)
            raise

    def resize(self, workers: int) -> None:
        """Have so many workers from now on: further ones are started, those that are too many finish their groups and leave.

        Raises `ValueError` for fewer than one.
        """
        if workers < 1:
            raise ValueError(f"{workers} rollout workers: a run needs at least 1")
        staying = [slot for slot in self._slots if slot.state is not WorkerState.DRAINING]
        by_use = sorted(staying, key=lambda slot: (slot.state is WorkerState.SERVING, len(slot.tickets), -slot.number))
        for slot in by_use[: max(0, len(staying) - workers)]:
            self._keeper.let_go(slot)
        for _ in range(workers - len(staying)):
            taken = {slot.number for slot in self._slots}
            number = next(n for n in range(len(taken) + 1) if n not in taken)
            self._slots.append(self._keeper.keep(number))

    async def run_group(self, ticket: Ticket, samples: int, partial: PartialGroup | None = None) -> Group:
        """Return a group of answers from the least busy worker; try failed ones again, elsewhere where that is possible.

        `partial` is what there is of the group from workers that are gone: it goes on where it was.
        """
        partial = partial or PartialGroup(ticket=ticket, attempt=0)
        slot: WorkerSlot | None = None
        deaths: list[WorkerDied] = []
        try:
            while True:
                self._partial_groups[ticket.number] = partial
                wanted = samples if partial.before is None else partial.before.worth_retrying
                group, slot = await self._sample_attempt(ticket, wanted, partial, deaths, avoided=slot)
                if partial.before is not None:
                    group = partial.before.merge_retry(group)
                if slot is None or partial.attempt >= self._retries or not group.worth_retrying:
                    return group
                partial = PartialGroup(ticket=ticket, attempt=partial.attempt + 1, before=group)
        finally:
            self._partial_groups.pop(ticket.number, None)

    async def groups_in_flight(self) -> list[PartialGroup]:
        """Return what there is of the groups in flight: by their workers, else what was known when they were given out."""
        workers = [slot.worker for slot in self._in(WorkerState.SERVING, WorkerState.DRAINING)]
        return await _newest(self._partial_groups.values(), workers)

    async def _sample_attempt(
        self,
        ticket: Ticket,
        samples: int,
        partial: PartialGroup,
        deaths: list[WorkerDied],
        *,
        avoided: WorkerSlot | None,
    ) -> tuple[Group, WorkerSlot | None]:
        """Return one attempt's answers and the slot that gave them. If a worker dies, another one samples from the same seeds.

        `deaths` are the worker failures of this ticket. After `MAX_WORKER_FAILURES` all its answers fail, and the slot is None.
        """
        own = replace(partial, before=None)
        while len(deaths) < MAX_WORKER_FAILURES:
            slot = await self._free(avoided)
            with slot.running(ticket.number) as worker:
                try:
                    group = await worker.run_group(ticket, samples, partial.attempt, own)
                except WorkerDied as death:
                    slot.end(worker, death)
                    deaths.append(death)
                    if len(deaths) < MAX_WORKER_FAILURES:
                        self.on_reissue(ticket.number, "worker_died")
                    continue
            slot.learn(worker, group)
            return group, slot
        group = _failed(ticket, samples, deaths)
        self._log(f"group {ticket.number} is given up: {group.failures[0].message}")
        return group, None

    async def _free(self, avoided: WorkerSlot | None) -> WorkerSlot:
        """Wait until a worker serves, and return the one with the least to do, another than `avoided` where there is one."""
        await self._keeper.until(lambda: self._keeper.awake and self._any_serves())
        serving = [slot for slot in self._slots if slot.state is WorkerState.SERVING and slot is not avoided]
        least = min(serving, key=_LOAD, default=avoided)  # for every group, among thousands of workers
        assert least is not None
        return least

    def _any_serves(self) -> bool:
        return any(slot.state is WorkerState.SERVING for slot in self._slots)

    def _in(self, *states: WorkerState) -> list[WorkerSlot]:
        return [slot for slot in self._slots if slot.state in states]

    def last_restart_at(self) -> float:
        """Return when a worker died, or took the place of another one, last, on the monotonic clock; 0 where none has.

        That is now while none serves and one starts, which has a deadline of its own.
        """
        waits = not self._in(WorkerState.SERVING) and bool(self._in(WorkerState.STARTING))
        return loop_time() if waits else self._keeper.restarted_at

    def processes(self) -> list[ProcessInfo]:
        return [slot.now(asleep=not self._keeper.awake) for slot in self._slots]

    async def set_onloaded(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        """Have the weights and the caches of all engines on their devices from now on, or not, `limit_s` seconds for each.

        Without caches groups that are asked for wait, and no engine starts: before, those that start have done so. One that
        fails or takes too long has died, and is replaced when the others have their caches again.
        """
        self._keeper.fall_asleep()
        await self._keeper.wait_settled()
        async with self._weights.lock:
            slots = [slot for slot in self._slots if slot.takes_weights]
            workers = [slot.worker for slot in slots]
            changing = (worker.set_onloaded(weights=weights, cache=cache, limit_s=limit_s) for worker in workers)
            self._without_dead(slots, workers, await asyncio.gather(*changing, return_exceptions=True))
        if cache:
            self._keeper.wake()
        if weights:
            self._keeper.check()

    async def memory_usage(self) -> dict[str, MemoryUsage]:
        async def named(worker: WorkerHandle) -> tuple[str, MemoryUsage]:
            return worker.name, await worker.memory_usage()

        return dict(await self._of_all(named))

    def starting(self) -> float:
        """Return a sign of life on the monotonic clock: now while an engine is being started, else 0."""
        return loop_time() if self._keeper.starting else 0.0

    async def sample_bare(self, prompts: list[tuple[int, ...]], *, max_tokens: int) -> int:
        """Sample turns by the engines alone, for measurement; returns their tokens."""
        workers = [slot.worker for slot in self._in(WorkerState.SERVING)]
        shares = (worker.sample_bare(prompts[n :: len(workers)], max_tokens) for n, worker in enumerate(workers))
        return sum(await asyncio.gather(*shares))

    async def isolation(self) -> set[str]:
        """Return what the workers say about their sandboxes, each line once."""
        return set(await self._of_all(lambda worker: worker.isolation()))

    async def engine_stats(self) -> EngineStats:
        """Return what the engines did since they were last asked."""
        return EngineStats.together(await self._of_all(lambda worker: worker.engine_stats()))

    async def _of_all(self, ask: Callable[[WorkerHandle], Awaitable[T]]) -> list[T]:
        """Return what those that serve answer, without those that die meanwhile."""
        slots = self._in(WorkerState.SERVING, WorkerState.DRAINING)
        workers = [slot.worker for slot in slots]
        answers = await asyncio.gather(*(ask(worker) for worker in workers), return_exceptions=True)
        return self._without_dead(slots, workers, answers)

    def _without_dead(
        self, slots: Sequence[WorkerSlot], workers: Sequence[WorkerHandle], answers: Sequence[T | BaseException]
    ) -> list[T]:
        """Return the answers of those that live, in their order. Raises what was no death."""
        living: list[T] = []
        for slot, worker, answer in zip(slots, workers, answers, strict=True):
            if isinstance(answer, WorkerDied):
                slot.end(worker, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                living.append(answer)
        return living

    @property
    def model(self) -> Path | None:
        """The directory whose weights are served; None once others were pushed."""
        return self._weights.now.model

    def hold(self, model: Path) -> None:
        """Take note that the weights that were pushed last are those of a model directory."""
        self._weights.now = Served(version=self._weights.now.version, model=model)
        self._keeper.changed()

    async def load_weights(self, push: Push) -> WeightVersion:
        """Deliver a push to every worker; returns the version that all of them confirm."""
        pushed = Served(version=push.manifest.weight_version, push=push)
        return await self._load(pushed, lambda receivers: self._weights.deliver_push(push, receivers))

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        """Let every worker read a model directory, whose weights count as `version`; returns what all of them confirm."""

        async def read(receivers: Sequence[WorkerHandle | JoiningWorker]) -> Sequence[WeightVersion | BaseException]:
            reading = (receiver.load_checkpoint(directory, version) for receiver in receivers)
            return await asyncio.gather(*reading, return_exceptions=True)

        return await self._load(Served(version=version, model=directory), read)

    async def _load(
        self,
        wanted: Served,
        give: Callable[[Sequence[WorkerHandle | JoiningWorker]], Awaitable[Sequence[WeightVersion | BaseException]]],
    ) -> WeightVersion:
        """Give weights to all workers. Those that die meanwhile are followed by others, which take them before they serve.

        A worker that is being given weights by itself takes these after those. Of a broadcast it takes the next one: the
        sender would wait for it, and it for the sender.
        """
        async with self._weights.lock:
            self._weights.now = wanted
            slots = [
                slot for slot in self._slots if slot.takes_weights and (wanted.non_blocking or slot.joining is None)
            ]
            workers = [slot.worker for slot in slots]
            outcomes = await give([slot.receiver for slot in slots]) if slots else []
            confirmed = self._without_dead(slots, workers, outcomes)
            assert set(confirmed) <= {wanted.version}, confirmed
            self._keeper.changed()
            for slot, worker, outcome in zip(slots, workers, outcomes, strict=True):
                if not isinstance(outcome, WorkerDied):
                    self._keeper.serves(slot, worker)
        self._keeper.check()
        return wanted.version

    async def close(self) -> None:
        await self._keeper.stop(self._slots)


def _failed(ticket: Ticket, samples: int, deaths: Sequence[WorkerDied]) -> Group:
    """Return the group of a ticket that met too many deaths: all its answers failed."""
    why = f"{ticket.task.label} was being sampled when {len(deaths)} rollout workers died; the last death: {deaths[-1]}"
    failure = Failure(kind=FailureKind.ENGINE, message=why)
    lost = Trajectory(task=ticket.task, turns=(), stop=Stop.FAILURE, failure=failure)
    return Group(ticket=ticket, trajectories=(), failed=(lost,) * samples)


async def _newest(known: Iterable[PartialGroup], workers: Sequence[WorkerHandle]) -> list[PartialGroup]:
    """Return the groups, each as its worker reports it, or as it was `known` if no worker does.

    A worker that has died or does not answer in time is left out.
    """
    asked = [asyncio.ensure_future(_fetch_partial_groups(worker)) for worker in workers]
    answered, silent = await asyncio.wait(asked, timeout=ANSWER_S) if asked else (set(), set())
    for one in silent:
        one.cancel()
    if silent:
        LOG.warning("%d rollout workers do not say what is in flight: their episodes begin again", len(silent))
    there = {(one.ticket.number, one.attempt): one for worker in answered for one in worker.result()}
    return [replace(there.get((one.ticket.number, one.attempt), one), before=one.before) for one in list(known)]


async def _fetch_partial_groups(worker: WorkerHandle) -> list[PartialGroup]:
    try:
        return await worker.groups_in_flight()
    except WorkerDied:  # its groups are given out again
        return []

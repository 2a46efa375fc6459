"""The pool of rollout workers: assigns groups, retries failed episodes, and collects confirmations from all workers.

`slot_keeper.py` replaces dead workers. Another worker repeats their work with the same seeds.
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
from temper.rollout.episodes.worker import WorkerHandle
from temper.rollout.pool.slot_keeper import RestartPolicy, SlotKeeper, WorkerSlot, WorkerState
from temper.rollout.trajectory import Failure, FailureKind, Group, Stop, Ticket, Trajectory, WeightVersion
from temper.rollout.weights.delivery import Push, Served, ServedWeights, WorkerEnd

T = TypeVar("T")
LOG = logging.getLogger(__name__)
ANSWER_S = 20.0
"""Seconds in which a worker must list its groups in flight."""
MAX_WORKER_FAILURES = 3
"""After so many worker failures a ticket's group fails, because its task may be the cause."""
Spawn = Callable[[int], WorkerHandle]
"""Makes the worker of a slot, by its number. `WorkerHandle.wait_until_running` and `start` do the slow part."""

OnReissue = Callable[[int, str], None]


def ignore_reissue(number: int, why: str) -> None:
    pass


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
        """`weights` are the initial weights of all `workers`. `retries` is the number of retries of failed episodes."""
        restart_policy = restart_policy or RestartPolicy()
        self._weights = weights
        self._retries = retries
        self._log = restart_policy.log
        self._wanted = workers
        self._slots: list[WorkerSlot] = []
        self._partial_groups: dict[int, PartialGroup] = {}
        self.on_reissue: OnReissue = ignore_reissue
        """Called with number and reason for each ticket that moves to another worker."""
        self._keeper = SlotKeeper(spawn, weights=weights, restart_policy=restart_policy, on_leave=self._slots.remove)

    async def start(self) -> None:
        """Start the workers, and wait until all serve. On an error or a cancellation, end the started ones."""
        try:
            self.resize(self._wanted)
            await self._keeper.wait_all_serving()
        except BaseException:
            await self._keeper.stop(self._slots)
            raise

    def resize(self, workers: int) -> None:
        """Change the number of workers. Additional ones start; superfluous ones finish their groups and leave.

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
        """Return a group of answers from the least busy worker. Retry failed ones, on another worker if possible.

        `partial` is the part of the group from earlier workers, which continues.
        """
        partial = partial or PartialGroup(ticket=ticket, attempt=0)
        slot: WorkerSlot | None = None
        worker_failures: list[WorkerDied] = []
        try:
            while True:
                self._partial_groups[ticket.number] = partial
                wanted = samples if partial.before is None else partial.before.worth_retrying
                group, slot = await self._sample_attempt(ticket, wanted, partial, worker_failures, avoided=slot)
                if partial.before is not None:
                    group = partial.before.merge_retry(group)
                if slot is None or partial.attempt >= self._retries or not group.worth_retrying:
                    return group if slot is None else await self._compare(group, slot)
                partial = PartialGroup(ticket=ticket, attempt=partial.attempt + 1, before=group)
        finally:
            self._partial_groups.pop(ticket.number, None)

    async def _compare(self, group: Group, slot: WorkerSlot) -> Group:
        """Return the group with its judge's comparisons, if it has such a judge. If the worker dies, its answers fail."""
        if not group.ticket.task.env.settings.compares or not group.trajectories:
            return group
        try:
            with slot.running(group.ticket.number) as worker:
                return await worker.compare_answers(group)
        except WorkerDied as error:
            return group.fail(Failure(kind=FailureKind.WORKER, message=str(error)))

    async def groups_in_flight(self) -> list[PartialGroup]:
        """Return the groups in flight, as their workers report them, or else as they were assigned."""
        workers = [slot.worker for slot in self._in(WorkerState.SERVING, WorkerState.DRAINING)]
        return await _newest(self._partial_groups.values(), workers)

    async def _sample_attempt(
        self,
        ticket: Ticket,
        samples: int,
        partial: PartialGroup,
        worker_failures: list[WorkerDied],
        *,
        avoided: WorkerSlot | None,
    ) -> tuple[Group, WorkerSlot | None]:
        """Return one attempt's answers and its slot. If a worker dies, another one samples with the same seeds.

        `worker_failures` are those of this ticket. After `MAX_WORKER_FAILURES` all its answers fail, and the slot is
        None.
        """
        own = replace(partial, before=None)
        while len(worker_failures) < MAX_WORKER_FAILURES:
            slot = await self._free(avoided)
            with slot.running(ticket.number) as worker:
                try:
                    group = await worker.run_group(ticket, samples, partial.attempt, own)
                except WorkerDied as error:
                    slot.end(worker, error)
                    worker_failures.append(error)
                    if len(worker_failures) < MAX_WORKER_FAILURES:
                        self.on_reissue(ticket.number, "worker_died")
                    continue
            slot.record_result(worker, group)
            return group, slot
        group = _fail_all(ticket, samples, worker_failures)
        self._log(f"group {ticket.number} failed: {group.failures[0].message}")
        return group, None

    async def _free(self, avoided: WorkerSlot | None) -> WorkerSlot:
        """Wait until a worker serves. Return the least busy one, if possible not `avoided`."""
        await self._keeper.wait_until(lambda: self._keeper.awake and self._any_serves())
        serving = [slot for slot in self._slots if slot.state is WorkerState.SERVING and slot is not avoided]
        # For each group, over up to thousands of workers: `attrgetter` is faster than a lambda.
        least = min(serving, key=attrgetter("load"), default=avoided)
        assert least is not None
        return least

    def _any_serves(self) -> bool:
        return any(slot.state is WorkerState.SERVING for slot in self._slots)

    def _in(self, *states: WorkerState) -> list[WorkerSlot]:
        return [slot for slot in self._slots if slot.state in states]

    def last_restart_at(self) -> float:
        """Return the time of the last failure or replacement of a worker, on the monotonic clock; 0 without one.

        While no worker serves and one starts, it is now: the start has its own deadline.
        """
        waits = not self._in(WorkerState.SERVING) and bool(self._in(WorkerState.STARTING))
        return loop_time() if waits else self._keeper.restarted_at

    def processes(self) -> list[ProcessInfo]:
        return [slot.now(asleep=not self._keeper.awake) for slot in self._slots]

    async def set_onloaded(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        """Move weights and caches of all engines to their devices, or off them, within `limit_s` seconds each.

        Without caches new groups wait, and no engine starts; earlier starts finish first. An engine that fails or takes too
        long counts as dead, and is replaced once the others have their caches again.
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
        async def ask(worker: WorkerHandle) -> tuple[str, MemoryUsage]:
            return worker.name, await worker.memory_usage()

        return dict(await self._of_all(ask))

    def starting(self) -> float:
        """Return now, on the monotonic clock, while an engine starts, else 0."""
        return loop_time() if self._keeper.starting else 0.0

    async def sample_bare(self, prompts: list[tuple[int, ...]], *, max_tokens: int) -> int:
        """Sample turns without episodes, for measurement. Return the number of tokens."""
        workers = [slot.worker for slot in self._in(WorkerState.SERVING)]
        shares = (worker.sample_bare(prompts[n :: len(workers)], max_tokens) for n, worker in enumerate(workers))
        return sum(await asyncio.gather(*shares))

    async def isolation(self) -> set[str]:
        """Return the isolation of the workers' sandboxes, each line once."""
        return set(await self._of_all(lambda worker: worker.isolation()))

    async def engine_stats(self) -> EngineStats:
        """Return the engines' work since the last call."""
        return EngineStats.combine(await self._of_all(lambda worker: worker.engine_stats()))

    async def _of_all(self, ask: Callable[[WorkerHandle], Awaitable[T]]) -> list[T]:
        """Return the answers of the serving workers, without those that die meanwhile."""
        slots = self._in(WorkerState.SERVING, WorkerState.DRAINING)
        workers = [slot.worker for slot in slots]
        answers = await asyncio.gather(*(ask(worker) for worker in workers), return_exceptions=True)
        return self._without_dead(slots, workers, answers)

    def _without_dead(
        self, slots: Sequence[WorkerSlot], workers: Sequence[WorkerHandle], answers: Sequence[T | BaseException]
    ) -> list[T]:
        """Return the living workers' answers, in order. Raises other errors."""
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
        """The directory of the served weights; None after a push."""
        return self._weights.now.model

    def hold(self, model: Path) -> None:
        """Note that the last pushed weights are those of a model directory."""
        self._weights.now = Served(version=self._weights.now.version, model=model)
        self._keeper.notify()

    async def load_weights(self, push: Push) -> WeightVersion:
        """Deliver a push to every worker. Return the version that all confirm."""
        pushed = Served(version=push.manifest.weight_version, push=push)
        return await self._load(pushed, lambda receivers: self._weights.deliver_push(push, receivers))

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        """Let every worker read a model directory, whose weights count as `version`. Return the version that all confirm."""

        async def read(receivers: Sequence[WorkerEnd]) -> Sequence[WeightVersion | BaseException]:
            reading = (receiver.load_checkpoint(directory, version) for receiver in receivers)
            return await asyncio.gather(*reading, return_exceptions=True)

        return await self._load(Served(version=version, model=directory), read)

    async def _load(
        self,
        wanted: Served,
        give: Callable[[Sequence[WorkerEnd]], Awaitable[Sequence[WeightVersion | BaseException]]],
    ) -> WeightVersion:
        """Give weights to all workers. Replacements of workers that die meanwhile get them before they serve.

        A joining worker gets these weights after its own. It skips a blocking push: worker and sender would wait for each
        other.
        """
        async with self._weights.lock:
            self._weights.now = wanted
            slots = [
                slot for slot in self._slots if slot.takes_weights and (wanted.non_blocking or slot.joining is None)
            ]
            workers = [slot.worker for slot in slots]
            results = await give([slot.receiver for slot in slots]) if slots else []
            confirmed = self._without_dead(slots, workers, results)
            assert set(confirmed) <= {wanted.version}, confirmed
            self._keeper.notify()
            for slot, worker, result in zip(slots, workers, results, strict=True):
                if not isinstance(result, WorkerDied):
                    self._keeper.serves(slot, worker)
        self._keeper.check()
        return wanted.version

    async def close(self) -> None:
        await self._keeper.stop(self._slots)


def _fail_all(ticket: Ticket, samples: int, worker_failures: Sequence[WorkerDied]) -> Group:
    """Return the group of a ticket after too many worker failures: all its answers failed."""
    count, last = len(worker_failures), worker_failures[-1]
    why = f"{count} rollout workers failed while they sampled {ticket.task.label}; the last failure: {last}"
    failure = Failure(kind=FailureKind.ENGINE, message=why)
    lost = Trajectory(task=ticket.task, turns=(), stop=Stop.FAILURE, failure=failure)
    return Group(ticket=ticket, trajectories=(), failed=(lost,) * samples)


async def _newest(known: Iterable[PartialGroup], workers: Sequence[WorkerHandle]) -> list[PartialGroup]:
    """Return the groups as their workers report them, or else as `known`.

    Workers that died or do not answer in time are skipped.
    """
    requests = [asyncio.ensure_future(_fetch_partial_groups(worker)) for worker in workers]
    answered, silent = await asyncio.wait(requests, timeout=ANSWER_S) if requests else (set(), set())
    for one in silent:
        one.cancel()
    if silent:
        LOG.warning("%d rollout workers did not report their groups in flight: these episodes start anew", len(silent))
    there = {(one.ticket.number, one.attempt): one for worker in answered for one in worker.result()}
    return [replace(there.get((one.ticket.number, one.attempt), one), before=one.before) for one in list(known)]


async def _fetch_partial_groups(worker: WorkerHandle) -> list[PartialGroup]:
    try:
        return await worker.groups_in_flight()
    except WorkerDied:  # its groups are assigned again
        return []

"""A pool of rollout workers without processes. Tests control the workers."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from temper.envs.core.process import Heartbeat, MemoryUsage, Place, WorkerDied
from temper.envs.core.task import EnvRef, Task
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.episodes.worker import WorkerHandle
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.pool.restarts import RestartLimit
from temper.rollout.pool.slot_keeper import RestartPolicy
from temper.rollout.trajectory import Failure, FailureKind, Group, Stop, Ticket, Trajectory, WeightVersion
from temper.rollout.weights.delivery import Offered, ServedWeights
from temper.rollout.weights.manifest import WeightManifest, WholeWeightsNeeded

T = TypeVar("T")
TASK = Task(env=EnvRef(name="math"), key="1", messages=({"role": "user", "content": "?"},), spec={})
TICKET = Ticket(number=3, task=TASK, admitted=WeightVersion(step=0))


class Worker:
    """A rollout worker whose first `failures` episodes of every group fail. Held work waits for a release."""

    def __init__(
        self,
        failures: int = 0,
        kind: FailureKind = FailureKind.SANDBOX,
        *,
        name: str = "w",
        held: bool = False,
        unplaced: bool = False,
        broken: Exception | None = None,
    ) -> None:
        """`held` groups and an `unplaced` worker wait for `released` and `room`. `broken` is raised instead of a start."""
        self.name, self.failures, self.kind, self.broken = name, failures, kind, broken
        self.place: Place | None = None
        self.calls: list[tuple[int, int]] = []
        self.did: list[str] = []
        self.running = self.cancelled = self.damaged = 0
        self.lacks_base = self.closed = False
        self.has = (True, True)
        self.dead, self.released, self.room, self.loads, self.phases = (asyncio.Event() for _ in range(5))
        self.loads.set()
        self.phases.set()
        for event, waits in ((self.released, held), (self.room, unplaced)):
            if not waits:
                event.set()

    async def _alive(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the work's result, unless the worker dies first."""
        task, death = asyncio.create_task(work), asyncio.create_task(self.dead.wait())
        try:
            await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
            if self.dead.is_set():
                raise WorkerDied(f"{self.name} died")
            return task.result()
        finally:
            task.cancel()
            death.cancel()

    async def wait_until_running(self) -> None:
        await self._alive(self.room.wait())

    async def start(self, model_dir: Path, version: WeightVersion) -> WeightVersion:
        await self._alive(asyncio.sleep(0))
        if self.broken is not None:
            raise self.broken
        self.did.append(f"start {model_dir} {version.step}")
        return version

    async def wait_until_dead(self) -> None:
        await self._alive(asyncio.Event().wait())

    async def groups_in_flight(self) -> list[PartialGroup]:
        return []

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, partial: PartialGroup | None) -> Group:
        self.calls.append((samples, attempt))
        self.did.append(f"group {ticket.number}")
        self.running += 1
        try:
            await self._alive(self.released.wait())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        failure = Failure(kind=self.kind, message="lost")
        lost = Trajectory(task=ticket.task, turns=(), stop=Stop.FAILURE, failure=failure)
        right = Trajectory(task=ticket.task, turns=(), stop=Stop.ENV, reward=1.0)
        failed = min(self.failures, samples)
        return Group(ticket=ticket, trajectories=(right,) * (samples - failed), failed=(lost,) * failed)

    async def compare_answers(self, group: Group) -> Group:
        await self._alive(asyncio.sleep(0))
        self.did.append(f"compare {len(group.trajectories)}")
        return group

    async def sample_bare(self, prompts: list[tuple[int, ...]], max_tokens: int) -> int:
        return max_tokens * len(prompts)

    async def engine_stats(self) -> EngineStats:
        await self._alive(asyncio.sleep(0))
        return EngineStats(passes=2, running=3.0, cache_use=0.5, sampled_tokens=10)

    async def isolation(self) -> str:
        return "level 2"

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        await self._alive(self.loads.wait())
        if self.lacks_base:
            self.lacks_base = False
            raise WholeWeightsNeeded("no base")
        if self.damaged:
            self.damaged -= 1
            raise ValueError("what arrived has another checksum")
        self.did.append(f"push {manifest.version}")
        return manifest.weight_version

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        await self._alive(self.loads.wait())
        self.did.append(f"read {directory} {version.step}")
        return version

    async def set_onloaded(self, *, weights: bool, cache: bool, limit_s: float) -> None:
        await self._alive(self.phases.wait())
        self.has = (weights, cache)
        self.did.append("wake" if cache else "load" if weights else "sleep")

    async def memory_usage(self) -> MemoryUsage:
        return MemoryUsage(weights=int(self.has[0]), cache=int(self.has[1]))

    async def heartbeat(self) -> Heartbeat:
        return Heartbeat(progress=0, doing="", quiet_s=0.0)

    def kill(self) -> None:
        self.dead.set()

    async def close(self) -> None:
        self.closed = True
        self.dead.set()


async def pool_of(
    workers: Sequence[Worker],
    *,
    new_workers: Sequence[Worker] = (),
    retries: int = 0,
    restarts: int = 3,
    start_s: float = 60.0,
    push_s: float = 60.0,
    tell: Callable[[str], None] = lambda line: None,
) -> RolloutPool:
    """Return a pool that serves the directory "base" as version 0. `new_workers` replace dead ones."""

    async def late(worker: WorkerHandle, what: str) -> None:
        tell(f"{worker.name} looked at: {what}")
        worker.kill()

    coming: Iterator[Any] = iter([*workers, *new_workers])
    pool = RolloutPool(
        lambda number: next(coming),
        workers=len(workers),
        weights=ServedWeights(
            Path("base"), WeightVersion(step=0), push_s=lambda nbytes: push_s, newest=lambda: Path("newest")
        ),
        retries=retries,
        restart_policy=RestartPolicy(
            restarts=RestartLimit(restarts, window_s=1000.0),
            start_s=start_s,
            on_late_start=late,
            on_failure=lambda name, death: tell(f"{name}: {death}"),
            on_restart=lambda name, what: tell(f"{name} {what}"),
            log=tell,
        ),
    )
    await pool.start()
    return pool


async def settle() -> None:
    """Let all ready tasks run."""
    for _ in range(100):
        await asyncio.sleep(0)

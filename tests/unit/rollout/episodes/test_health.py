"""A rollout worker's heartbeat, and the effect of its engine's death on its groups."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from support.bound import bound
from support.in_loop import in_loop
from support.scripted_engine import RENDERER, ROOM, TAGS, ScriptedEngine, runner_of
from unit.rollout.episodes.test_clocks import Waiting

from temper.envs.core.process import WorkerDied
from temper.envs.core.task import EnvRef, Task
from temper.rollout.config import RolloutConfig
from temper.rollout.engines.engine_process import EngineProcess, cpu_s
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.episodes.worker import RolloutWorker
from temper.rollout.trajectory import Ticket, WeightVersion
from temper.rollout.vllm_backend import make_agent_server, make_engine

TASK = bound(Task(key="1", messages=({"role": "user", "content": "1+1?"},), spec={"answer": "2"}), "math")


class SickEngine(ScriptedEngine):
    """An engine whose process hangs without `well`, and is dead after `dead`."""

    def __init__(self) -> None:
        super().__init__(["2"])
        self.well, self.dead = asyncio.Event(), False
        self.process = EngineProcess(lambda: self.dead, raised=LookupError)

    async def generate(self, request: TurnRequest) -> Completion:
        if self.dead:
            raise WorkerDied("the engine's process died")
        return await super().generate(request)

    async def wait_for_answer(self) -> None:
        await self.process.answer(self._answered())

    async def _answered(self) -> None:
        await self.well.wait()

    async def wait_for_progress(self) -> None:
        await self.process.wait_for_progress(self._answered())

    async def wait_until_dead(self) -> None:
        await self.process.wait_until_dead()

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        await self.process.answer(self._answered())
        return version


def worker_of(engine: SickEngine) -> RolloutWorker:
    worker = RolloutWorker(RolloutConfig(), seed=1, make_engine=make_engine, make_agent_server=make_agent_server)
    worker.attach(engine, RENDERER, TAGS)
    return worker


@in_loop
async def test_a_hanging_engine_is_silent_unless_it_loads() -> None:
    worker = worker_of(engine := SickEngine())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(worker.heartbeat(), 0.1)
    loading = asyncio.create_task(worker.load_checkpoint("model", 3))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(worker.heartbeat(), 0.1)
    engine.process.loading = [os.getpid()]
    before = asyncio.create_task(worker.heartbeat())
    await asyncio.sleep(0)
    _use_a_cpu()
    first = await before
    engine.well.set()
    second = await worker.heartbeat()
    assert [second.progress - first.progress, await loading, (await worker.heartbeat()).doing] == [
        1,
        WeightVersion(step=3),
        "",
    ]


@in_loop
async def test_a_sleeping_worker_makes_progress() -> None:
    worker = worker_of(engine := SickEngine())
    engine.well.set()
    await worker.set_onloaded(weights=False, cache=False, limit_s=1.0)
    asleep = [(await worker.heartbeat()).progress for _ in range(3)]
    await worker.set_onloaded(weights=True, cache=True, limit_s=1.0)
    awake = [(await worker.heartbeat()).progress for _ in range(2)]
    assert [*(later - first for first, later in pairwise(asleep)), awake[1] - awake[0]] == [1, 1, 0]


def _use_a_cpu() -> None:
    used = cpu_s([os.getpid()])
    while cpu_s([os.getpid()]) == used:
        pass


@in_loop
async def test_whoever_waits_for_an_engine_hears_of_its_death() -> None:
    worker = worker_of(engine := SickEngine())
    waiting = [
        asyncio.create_task(call)
        for call in (worker.heartbeat(), worker.wait_until_dead(), worker.load_checkpoint("model", 1))
    ]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    engine.dead = True
    await asyncio.wait(waiting)
    assert [str(error) for error in [task.exception() for task in waiting]] == ["the engine's process died"] * 3


@in_loop
async def test_what_the_front_end_says_of_a_dead_engine_is_a_death() -> None:
    async def fails() -> None:
        raise LookupError("EngineCore is gone")

    with pytest.raises(WorkerDied):
        await EngineProcess(lambda: False, raised=LookupError).answer(fails())


@in_loop
async def test_the_death_of_an_engine_is_no_failure_of_an_episode() -> None:
    worker = worker_of(engine := SickEngine())
    engine.dead = True
    with pytest.raises(WorkerDied, match="the engine's process died"):
        await worker.run_group(Ticket(number=0, task=TASK, admitted=WeightVersion(step=0)), 2)


@in_loop
async def test_a_group_makes_a_worker_busy() -> None:
    worker = worker_of(engine := SickEngine())
    engine.well.set()
    before = (await worker.heartbeat()).progress
    running = asyncio.create_task(worker.run_group(Ticket(number=7, task=TASK, admitted=WeightVersion(step=0)), 1))
    await asyncio.sleep(0)
    doing = (await worker.heartbeat()).doing
    group = await running
    assert not group.failed, group.failures
    after = await worker.heartbeat()
    assert (doing, after.progress - before, after.doing) == ("group 7", 4, "")


def own_env(worker: RolloutWorker, engine: SickEngine, tool: Callable[[], object], *, timeout_s: float) -> Task:
    """Register an environment that uses a tool in each turn. Return a task of it."""
    limits = replace(ROOM, timeout_s=timeout_s)
    engine._texts = ["</think>go"]
    worker._runner = runner_of(engine, limits=limits, make=lambda _: Waiting(lambda _task: tool()))
    return Task(env=EnvRef(name="own"), key="1", messages=TASK.messages, spec={})


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Set at the end, so that no thread waits on."""
    event = threading.Event()
    yield event
    event.set()


@in_loop
async def test_a_slow_call_of_an_environment_gets_on_within_its_time(released: threading.Event) -> None:
    worker = worker_of(engine := SickEngine())
    engine.well.set()
    task = own_env(worker, engine, released.wait, timeout_s=60.0)
    group = asyncio.create_task(worker.run_group(Ticket(number=1, task=task, admitted=WeightVersion(step=0)), 1))
    await asyncio.sleep(0.2)
    heartbeats = [await worker.heartbeat() for _ in range(3)]
    assert all(later.doing and later.progress > first.progress for first, later in pairwise(heartbeats))
    released.set()
    await group
    assert (await worker.heartbeat()).progress == (await worker.heartbeat()).progress


@in_loop
async def test_a_worker_with_too_many_hung_calls_ends_after_its_groups(
    released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.rollout.episodes.worker.MOST_HUNG", 2)
    worker = worker_of(engine := SickEngine())
    task = own_env(worker, engine, released.wait, timeout_s=0.3)
    tickets = [Ticket(number=n, task=task, admitted=WeightVersion(step=0)) for n in range(4)]
    await worker.run_group(tickets[0], 2)
    assert (await worker.engine_stats()).hung_calls == 2
    flying = asyncio.create_task(worker.run_group(tickets[1], 1))
    await asyncio.sleep(0)
    await flying
    own_task = asyncio.create_task(worker.run_group(tickets[2], 1))
    with pytest.raises(WorkerDied, match="3 environment calls"):
        await own_task

"""A stage that is killed at any await resumes from its checkpoint: no draw is lost or trained twice.

The turns of all groups are stored, as by a worker of Ray. In some cases the stored turns of a group are lost once.

At lag 0, the resumed stage trains the same tickets in the same steps and batches as an uninterrupted run.
"""

import asyncio
import hashlib
import io
import json
import random
import shutil
import threading
from collections import Counter
from collections.abc import Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.event_rows import read_event_log
from support.plain_process import PlainResult
from support.pushes import empty_push
from support.turns import turn_of
from unit.orchestrator.evaluation.test_budget_curve import Tracked

from temper.envs.core.errors import Failure, FailureKind
from temper.envs.core.process import StoredResult
from temper.envs.core.task import EnvRef, Task
from temper.learner.batches.builder import BatchBuilder, BuildBatches
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.loop.deadline import Deadline, StopFlag
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.pipeline.config import Config, load_config
from temper.orchestrator.pipeline.plan import single_instance
from temper.orchestrator.run.checkpoint import begin, commit, latest, step_of
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.run.metrics_log import read_metrics
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.engines import Engines
from temper.orchestrator.session.run import Run
from temper.orchestrator.session.trainer import Trainer
from temper.orchestrator.stages.loop_stage import LoopStage
from temper.orchestrator.stages.registry import RL
from temper.orchestrator.stages.rl import has_advantage
from temper.orchestrator.stages.stage import StageInstance
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.stored_turns import GroupsLost, read_groups, set_reference, store_turns
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, WeightVersion
from temper.rollout.weights.delivery import Push

STEPS, PER_STEP, EVERY = 5, 2, 2
LOAD_S = 0.02
LIMIT = Deadline(seconds=20, setting="rl.timeout_s")
SETTINGS = [f"rl.steps={STEPS}", f"rl.groups_per_step={PER_STEP}", f"rl.checkpoint_every={EVERY}", "rl.group_size=2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The allowed lag, the number of replaced groups, and the number of groups in flight."""

    lag: int
    drops: int
    over_sampling: float | None = None
    loses: tuple[int, ...] = ()
    """Tickets whose stored turns are lost, once in each process."""

    def __str__(self) -> str:
        fewer = "" if self.over_sampling is None else f" over_sampling {self.over_sampling}"
        return f"lag {self.lag} drops {self.drops}{fewer}{' loses' if self.loses else ''}"


class Life:
    """One process. It is killed after its tasks resume `kill_at` times."""

    def __init__(self, *, kill_at: int | None, seed: int = 0) -> None:
        self.kill_at = kill_at
        self.resumed = 0
        self.rng = random.Random(seed)
        self.killed = False

    def run(self, work: Coroutine[Any, Any, object]) -> bool:
        """Return whether the work finishes before the kill."""
        loop, before = asyncio.new_event_loop(), set(threading.enumerate())
        loop.set_task_factory(lambda loop, coro, **told: asyncio.Task(Counted(coro, self), loop=loop, **told))
        task = loop.create_task(work)

        def stops(_: object) -> None:
            loop.stop()

        task.add_done_callback(stops)
        try:
            loop.run_forever()
            if not self.killed:
                task.result()
                return True
            task.remove_done_callback(stops)
            self.killed, self.kill_at = False, None  # a real process cleans nothing up
            loop.run_until_complete(cleared(asyncio.all_tasks(loop)))
            return False
        finally:
            loop.close()
            for thread in set(threading.enumerate()) - before:
                thread.join(timeout=20)

    def resume(self) -> bool:
        """Count a resumption. Return whether the process is dead."""
        self.resumed += 1
        if self.resumed == self.kill_at:
            self.killed = True
            asyncio.get_running_loop().stop()
        return self.killed

    async def some_time(self) -> None:
        """Yield to other tasks a random number of times."""
        for _ in range(self.rng.choice((0, 1, 2, 9))):
            await asyncio.sleep(0)


async def cleared(tasks: set[asyncio.Task[Any]]) -> None:
    """End the tasks of a dead process. Cancelled tasks write nothing."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Counted(Coroutine[Any, Any, Any]):
    """Counts the resumptions of a coroutine. Does nothing once the process is dead."""

    def __init__(self, inner: Coroutine[Any, Any, Any], life: Life) -> None:
        self._inner, self._life = inner, life

    def send(self, value: Any) -> Any:
        return None if self._life.resume() else self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        return None if self._life.resume() else self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError


class Numbered:
    def task(self, index: int) -> Task:
        messages = ({"role": "user", "content": str(index)},)
        return Task(env=EnvRef(name="math"), key=str(index), messages=messages, spec={})


class NumberedStage(StageInstance):
    def mixture(self, *_told: Any) -> Mixture:
        return Mixture({"math": Numbered()}, {"math": 1.0})


@dataclass(kw_only=True)
class Weights:
    """The hash of every trained batch in order, and the published prefix."""

    learnt: list[str] = field(default_factory=list)
    published: list[str] = field(default_factory=list)


class Learner:
    """Stores a hash of each batch."""

    is_stuck = False

    def __init__(self, life: Life, weights: Weights) -> None:
        self.life, self.weights = life, weights

    async def token_records(self) -> list[StoredResult]:
        return []

    async def build(self, groups: Sequence[Group], builds: BuildBatches) -> None:
        opened, lost = await read_groups(groups)
        if lost:
            raise GroupsLost(lost)
        self.batches = builds(opened)

    async def step(self, *, epochs: int = 1) -> dict[str, float]:
        await self.life.some_time()
        digest = hashlib.sha256("".join(self.weights.learnt).encode())
        for part in (part for batch in self.batches for rank in batch.micro_batches for part in rank):
            digest.update(part.ids_BT.tobytes() + part.advantages_BT.tobytes() + part.behaviour_BT.tobytes())
        self.weights.learnt.append(digest.hexdigest()[:12])
        return {"skipped": 0.0}

    async def publish(self, version: WeightVersion) -> Push:
        await self.life.some_time()
        self.weights.published[:] = self.weights.learnt
        return empty_push(version.step, nbytes=64)


class Rollouts:
    """Answers depend on ticket and weights. One in three groups has no nonzero advantage, one in seven fails."""

    def __init__(self, life: Life, weights: Weights, serves: list[str], *, loses: Sequence[int] = ()) -> None:
        self.life, self.weights, self.serves, self.loses = life, weights, serves, set(loses)
        self.running: dict[int, PartialGroup] = {}

    async def run_group(self, ticket: Ticket, samples: int, partial: PartialGroup | None = None) -> Group:
        served = tuple(self.serves)
        self.running[ticket.number] = partial or PartialGroup(
            ticket=ticket, attempt=0, finished={0: self.answer(ticket, 1.0, served)}
        )
        await self.life.some_time()
        partial = self.running.pop(ticket.number)
        if ticket.number % 7 == 5:
            broken = Failure(kind=FailureKind.ENVIRONMENT, message="down")
            failed = Trajectory(task=ticket.task, turns=(), stop=Stop.FAILURE, failure=broken)
            return Group(ticket=ticket, trajectories=(), failed=(failed,) * samples)
        right = (1.0, 1.0) if ticket.number % 3 == 1 else (0.0, 1.0)
        others = (self.answer(ticket, reward, served) for reward in right[:-1])
        group, turns = store_turns(Group(ticket=ticket, trajectories=(*others, partial.finished[0])))
        stored = PlainResult(turns)
        stored.lost = ticket.number in self.loses
        self.loses.discard(ticket.number)
        return set_reference(group, stored)

    async def groups_in_flight(self) -> list[PartialGroup]:
        await self.life.some_time()
        return list(self.running.values())

    def answer(self, ticket: Ticket, reward: float, served: tuple[str, ...]) -> Trajectory:
        tokens = hashlib.sha256(f"{ticket.number}/{reward}/{served}".encode()).digest()[:3]
        versions, logprob = (ticket.admitted.step,) * 3, -1.0 / (1 + tokens[0])
        turn = turn_of(tokens, context=(1, 2), logprob=logprob, versions=versions, text="an answer")
        return Trajectory(task=ticket.task, turns=(turn,), stop=Stop.ENV, reward=reward)

    async def load_weights(self, push: Push) -> WeightVersion:
        pushed = list(self.weights.published)
        await self.life.some_time()
        await asyncio.sleep(self.life.rng.choice((0.0, LOAD_S)))  # overlaps the next step if its groups are ready
        self.serves[:] = pushed
        return push.manifest.weight_version

    async def engine_stats(self) -> EngineStats:
        await self.life.some_time()
        return EngineStats()


class ToldTrainer(Trainer):
    told: Learner

    def batch_builder(self) -> BatchBuilder:
        return BatchBuilder(config=self._run.config.learner, pad_id=0)

    async def begin(self, name: str, **_told: Any) -> Any:
        checkpoint = latest(self._run.folder.checkpoints(name))
        if checkpoint is not None:
            self.told.weights.learnt[:] = json.loads((checkpoint / "learnt.json").read_text())
        return self.told, 0 if checkpoint is None else step_of(checkpoint)

    async def save(self, name: str, step: int, files: dict[str, str], *, write: Any = None) -> None:
        await self.told.life.some_time()
        directory = begin(self._run.folder.checkpoints(name), step, needed_bytes=0)
        await write(directory)
        for file, text in {**files, "learnt.json": json.dumps(self.told.weights.learnt)}.items():
            (directory / file).write_text(text)
            await asyncio.sleep(0)
        commit(directory)
        await self.told.life.some_time()


class ToldEngines(Engines):
    told: Rollouts

    async def serve(self, model: Path, *, who: str) -> Any:
        self.told.serves[:] = self.told.weights.learnt
        return self.told


class ToldRun(Run):
    def __init__(
        self, config: RunConfig, *, folder: RunDir, progress: Progress, life: Life, loses: Sequence[int]
    ) -> None:
        super().__init__(config, folder=folder, tracker=Tracked(), progress=progress, stop=StopFlag(), will_train=True)
        weights = Weights()
        self.trainer = ToldTrainer(self)
        self.trainer.told = Learner(life, weights)
        self.engines = ToldEngines(self, start_learner=None)
        self.engines.told = Rollouts(life, weights, [], loses=loses)


@cache
def settings(case: Case) -> Config:
    given = [
        f"rl.max_lag={case.lag}",
        f"rl.max_replaced_groups={case.drops}",
        f"rl.over_sampling={json.dumps(case.over_sampling)}",
        "rl.loss.token_range=[0.5,5]",
    ]
    return load_config(Path("configs/demo.yaml"), [*SETTINGS, *given, "rl.max_failures=1.0"])


def lived(root: Path, life: Life, case: Case) -> bool:
    """Run the stage in its own process. Return whether it finishes."""
    config = settings(case)
    folder = RunDir(root)
    folder.open()
    if folder.state().model is None:
        folder.store(RunState(model=str(root)))
    kind = single_instance(RL)
    instance = NumberedStage(stage=kind.stage, name=kind.name, overrides=kind.overrides)

    async def work() -> None:
        rl = config.section(RlConfig)
        with Progress(stream=io.StringIO()) as progress:
            run = ToldRun(config, folder=folder, progress=progress, life=life, loses=case.loses)
            signal = partial(has_advantage, kind=rl.loss.advantage)
            await LoopStage(run, rl, instance, max_replaced_groups=rl.max_replaced_groups, has_advantage=signal).run()

    try:
        return life.run(work())
    finally:
        folder.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The result of a run: trained batches, and the fate of each ticket with its step, up to the last step."""

    learnt: list[str]
    became: set[tuple[int | None, str, int | None]]


def left_of(root: Path) -> Left:
    rows = read_event_log(root / "event_log.jsonl")
    last = max(place for place, row in enumerate(rows) if row.event == "step")  # later rows depend on timing
    rows = rows[:last]
    checkpoint = latest(root / "checkpoints" / "rl")
    assert checkpoint is not None
    ends = {(row.ticket, str(row.event), row.step) for row in rows if row.event in ("trained", "dropped", "failed")}
    return Left(learnt=json.loads((checkpoint / "learnt.json").read_text()), became=ends)


def check_whole(root: Path, case: Case) -> None:
    """Check draws, tickets, totals and files: nothing is lost or duplicated, and no group exceeds its lag."""
    rows = read_event_log(root / "event_log.jsonl")
    issued = [row for row in rows if row.event == "admitted"]
    assert [row.ticket for row in issued] == list(range(len(issued)))
    assert [row.index for row in issued] == list(range(len(issued)))
    ends = Counter(row.ticket for row in rows if row.event in ("trained", "dropped", "failed"))
    assert set(ends.values()) == {1}
    steps = [row for row in rows if row.event == "step"]
    assert [row.step for row in steps] == list(range(1, STEPS + 1))
    assert all(row.totals.is_balanced for row in steps)
    for row in steps:
        before = rows[: rows.index(row)]
        seen = Counter(each.event for each in before)
        assert (seen["admitted"], seen["trained"], seen["dropped"], seen["failed"]) == (
            row.issued,
            row.trained,
            row.dropped,
            row.failed,
        )
    assert [row.step for row in read_metrics(root / "metrics.jsonl") if row.stage == "rl"] == list(range(1, STEPS + 1))
    trained = Counter(row.step for row in rows if row.event == "trained")
    assert trained == dict.fromkeys(range(1, STEPS + 1), PER_STEP)
    served = {row.ticket: row.version or 0 for row in issued}
    lags = [(row.step or 0) - 1 - served[row.ticket] for row in rows if row.event == "trained"]
    assert max(lags) <= case.lag


def undisturbed(root: Path, case: Case) -> tuple[Left, int]:
    """Return the result of a run without a kill, and its number of resumptions."""
    life = Life(kill_at=None)
    assert lived(root, life, case)
    check_whole(root, case)
    return left_of(root), life.resumed


@pytest.fixture
def memory() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


CASES = [
    Case(lag=0, drops=64),
    Case(lag=0, drops=1),
    Case(lag=1, drops=64),
    Case(lag=3, drops=64, over_sampling=0.5),
    Case(lag=0, drops=1, loses=(0, 3, 6)),
    Case(lag=1, drops=64, loses=(0, 3, 6)),
]


def killed_and_continued(memory: Path, case: Case, *, times: int) -> None:
    """Kill a process at each of `times` awaits and its successor in the first third. Let the third process finish."""
    whole, resumed = undisturbed(memory / "whole", case)
    for number, kill_at in enumerate(range(2, resumed, max(1, resumed // times))):
        root = memory / f"killed-{kill_at}"
        if not lived(root, Life(kill_at=kill_at, seed=number), case):
            lived(root, Life(kill_at=resumed // 3, seed=number + 1), case)
            assert lived(root, Life(kill_at=None, seed=number + 2), case)
        check_whole(root, case)
        if case.lag == 0:
            assert left_of(root) == whole
        shutil.rmtree(root, ignore_errors=True)


def test_groups_whose_turns_are_lost_are_sampled_again_and_train_as_they_would_have(memory: Path) -> None:
    whole, _ = undisturbed(memory / "whole", Case(lag=0, drops=1))
    lossy, _ = undisturbed(memory / "lossy", Case(lag=0, drops=1, loses=(0, 3, 6)))
    assert lossy == whole
    rows = read_event_log(memory / "lossy" / "event_log.jsonl")
    assert {row.ticket for row in rows if row.event == "reissued" and row.why == "turns_lost"} == {0, 3, 6}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_stage_that_is_killed_at_an_await_goes_on_exactly(memory: Path, case: Case) -> None:
    killed_and_continued(memory, case, times=8)


@pytest.mark.faults
@pytest.mark.parametrize("case", [*CASES, Case(lag=2, drops=64)], ids=str)
def test_a_stage_that_is_killed_at_any_of_its_awaits_goes_on_exactly(memory: Path, case: Case) -> None:
    killed_and_continued(memory, case, times=40)

"""Engines and a learner that take turns on one device: memory in each phase, and recovery from failures."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.plain_loop import plain_loop
from support.plain_pool import TICKET, settle
from support.shared_device import STATES, WEIGHTS, Device, SharingRank, SharingWorker
from unit.orchestrator.evaluation.test_budget_curve import Tracked
from unit.orchestrator.loop.test_loop import SlowSource

from temper.envs.core.process import ProcessState, WorkerDied
from temper.learner.trainer_group import RankHandle, TrainerGroup
from temper.orchestrator.loop.buffer import Buffer
from temper.orchestrator.loop.deadline import StopFlag, StuckError
from temper.orchestrator.loop.interfaces import LEARNING, PUSHING, SAMPLING
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.step import StepReport
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.colocated_phases import PHASES_FILE, ColocatedPhases
from temper.orchestrator.session.context import RunContext
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.pool.slot_keeper import RestartPolicy
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.delivery import ServedWeights

T = TypeVar("T")
A_STEP = ["sample", "sample", "sleep", "learner whole", "learn", "learner weights", "load"]
"""Calls on the device from the sampling phase to the push. After the push, the learner uses no device memory."""


class Shared:
    """One engine with its replacements, and one rank on the same device."""

    def __init__(self, folder: Path, *, workers: list[SharingWorker] | None = None, phase_s: float = 5.0) -> None:
        self.device = Device() if workers is None else workers[0].device
        coming: Iterator[Any] = iter(workers or [SharingWorker(self.device)])
        self.told: list[str] = []
        self.pool = RolloutPool(
            lambda number: next(coming),
            workers=1,
            weights=ServedWeights(Path("base"), WeightVersion(step=0), push_s=lambda nbytes: 60.0),
            retries=0,
            restart_policy=RestartPolicy(
                on_failure=lambda name, death: self.told.append(str(death)), log=self.told.append
            ),
        )
        self.rank = SharingRank(self.device)
        self.learner = TrainerGroup([RankHandle(self.rank, number=0)], engine_processes=1)
        run = RunDir(folder)
        folder.mkdir(exist_ok=True)
        config = load_config(Path("configs/demo.yaml"), ["name=t", f"deadlines.phase_s={phase_s}"])
        tracker: Any = Tracked()
        context = RunContext(
            config, folder=run, tracker=tracker, progress=Progress("t", stream=io.StringIO()), stop=StopFlag()
        )
        self.device_phases = ColocatedPhases(context, learner=lambda: self.learner, pool=lambda: self.pool)
        self.log = folder / PHASES_FILE

    async def steps(self, last: int, *, saves_at: int) -> list[StepReport]:
        """Run the steps up to `last`, save `saves_at`, and return the reports."""
        reports: list[StepReport] = []

        async def keep(report: StepReport) -> None:
            reports.append(report)

        async def save(step: int) -> None:
            if step == saves_at:
                await self.device_phases.begin(LEARNING)
                await self.learner.save(Path("c"))

        loop = plain_loop(
            rollouts=self.pool,
            learner=self.learner,
            mixture=Mixture({"math": SlowSource(slow=False)}, {"math": 1.0}),
            buffer=Buffer(groups_per_step=2, max_lag=0, max_replaced_groups=0),
            on_step=keep,
            save=save,
            device_phases=self.device_phases,
        )
        await loop.run(1, last)
        return reports


def run(shared: Shared, work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` with a serving pool, within 10 s."""

    async def all_of_it() -> T:
        async with asyncio.timeout(10):
            await shared.device_phases.begin(LEARNING)  # before an engine exists
            await shared.device_phases.begin(SAMPLING)
            await shared.pool.start()
            result = await work()
            await shared.pool.close()
        return result

    return asyncio.run(all_of_it())


def test_a_step_on_a_shared_device_goes_round_in_phases(tmp_path: Path) -> None:
    shared = Shared(tmp_path / "t")
    reports = run(shared, lambda: shared.steps(3, saves_at=2))
    begins = ["learner whole", "learner nothing", "w starts"]
    pushes = [[f"publish {version}", f"load {version}"] for version in (1, 2, 3)]
    wakes = ["learner nothing", "wake"]
    saved = ["sleep", "learner whole", "save"]
    assert shared.device.said == [
        *begins,
        *(*A_STEP, *pushes[0], *wakes),
        *(*A_STEP, *pushes[1], *saved, *wakes),
        *(*A_STEP, *pushes[2], *wakes),  # the last wake-up is for an evaluation
    ]
    assert [report.step for report in reports] == [1, 2, 3]
    assert all(report.times.metrics()["time/phase_s"] > 0 for report in reports)


def test_a_line_a_turn_says_who_had_what(tmp_path: Path) -> None:
    shared = Shared(tmp_path / "t")
    run(shared, lambda: shared.steps(1, saves_at=9))
    rows = [json.loads(line) for line in shared.log.read_text(encoding="utf-8").splitlines()]
    had = [(row["phase"], {name: one["weights"] for name, one in row["memory_usage"].items()}) for row in rows]
    rank = SharingRank.name
    assert had[1:] == [
        ("sampling", {rank: 0}),  # before the engine starts
        ("learning", {rank: WEIGHTS, "w": 0}),
        ("pushing", {rank: WEIGHTS, "w": 1}),
        ("sampling", {rank: 0, "w": 1}),
    ]
    assert [row["memory_usage"][rank]["states"] for row in rows[1:]] == [0, STATES, 0, 0]
    assert [row["memory_usage"]["w"]["cache"] for row in rows[2:]] == [0, 0, 1]


def test_groups_wait_while_the_engines_are_asleep(tmp_path: Path) -> None:
    shared = Shared(tmp_path / "t")

    async def work() -> list[ProcessState]:
        await shared.device_phases.begin(LEARNING)
        group = asyncio.create_task(shared.pool.run_group(TICKET, 2))
        await settle()
        states = [process.state for process in [*shared.pool.processes(), *shared.learner.processes()]]
        assert not group.done()
        await shared.device_phases.begin(PUSHING)
        await settle()
        assert not group.done()  # the weights are loaded, the cache is not
        await shared.device_phases.begin(SAMPLING)
        await group
        return states + [process.state for process in [*shared.pool.processes(), *shared.learner.processes()]]

    assert run(shared, work) == ["asleep", "serving", "serving", "asleep"]


def test_an_engine_that_dies_asleep_is_replaced_when_the_others_wake(tmp_path: Path) -> None:
    device = Device()
    first, second = SharingWorker(device, name="w"), SharingWorker(device, name="w2")
    shared = Shared(tmp_path / "t", workers=[first, second])

    async def work() -> None:
        await shared.device_phases.begin(LEARNING)
        first.kill()
        await settle()
        assert shared.told == ["w died"]
        assert "w2 starts" not in device.said  # the engine does not fit in memory with the learner
        await shared.device_phases.begin(PUSHING)
        push = await shared.learner.publish(WeightVersion(step=1))
        await shared.pool.load_weights(push)  # no engine receives it
        assert "w2 starts" not in device.said
        await shared.device_phases.begin(SAMPLING)
        await shared.pool.run_group(TICKET, 2)

    run(shared, work)
    assert second.did == ["start base 1", "push 1"]
    assert device.said[-3:] == ["w2 starts", "load 1", "sample"]


def test_the_learner_waits_for_an_engine_that_starts(tmp_path: Path) -> None:
    device = Device()
    started = asyncio.Event()

    class Slow(SharingWorker):
        async def start(self, model_dir: Path, version: WeightVersion) -> WeightVersion:
            confirmed = await super().start(model_dir, version)
            await started.wait()
            return confirmed

    first = SharingWorker(device, name="w")
    shared = Shared(tmp_path / "t", workers=[first, Slow(device, name="w2")], phase_s=0.5)

    async def work() -> None:
        first.kill()
        await settle()
        phase = asyncio.create_task(shared.device_phases.begin(LEARNING))
        await asyncio.sleep(1.0)  # longer than a phase's deadline; a start has its own deadline
        assert not phase.done()
        assert device.said[-1] == "w2 starts"
        started.set()
        await phase

    run(shared, work)
    assert device.said[-2:] == ["sleep", "learner whole"]


def test_an_engine_that_does_not_fall_asleep_is_as_good_as_dead(tmp_path: Path) -> None:
    device = Device()

    class Restless(SharingWorker):
        async def set_onloaded(self, *, weights: bool, cache: bool, limit_s: float) -> None:
            if not weights:
                raise WorkerDied(f"the engine did not fall asleep within {limit_s:.0f} s")
            await super().set_onloaded(weights=weights, cache=cache, limit_s=limit_s)

    second = SharingWorker(device, name="w2")
    shared = Shared(tmp_path / "t", workers=[Restless(device, name="w"), second])

    async def work() -> None:
        await shared.device_phases.begin(LEARNING)
        await shared.learner.step()
        await shared.device_phases.begin(SAMPLING)
        await shared.pool.run_group(TICKET, 2)

    run(shared, work)
    assert shared.told == ["the engine did not fall asleep within 5 s"]
    assert second.did == ["start base 0"]


def test_a_turn_that_never_begins_ends_the_run_and_names_its_deadline(tmp_path: Path) -> None:
    device = Device()
    worker = SharingWorker(device)
    shared = Shared(tmp_path / "t", workers=[worker], phase_s=0.5)

    async def work() -> None:
        worker.phases.clear()
        with pytest.raises(StuckError, match=r"deadlines\.phase_s"):
            await shared.device_phases.begin(LEARNING)

    run(shared, work)


def test_what_was_learnt_can_be_saved_after_too_many_engines_have_died(tmp_path: Path) -> None:
    device = Device()
    workers = [SharingWorker(device, name=f"w{number}") for number in range(5)]
    shared = Shared(tmp_path / "t", workers=workers)

    async def work() -> None:
        for worker in workers[:4]:
            worker.kill()
            await settle()
        with pytest.raises(RuntimeError, match="w3 died"):
            await shared.pool.run_group(TICKET, 2)
        await shared.device_phases.begin(LEARNING)
        await shared.learner.save(Path("c"))
        with pytest.raises(RuntimeError, match="w3 died"):
            await shared.device_phases.begin(SAMPLING)

    run(shared, work)
    assert device.said[-3:-1] == ["learner whole", "save"]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([], "rl.max_lag=1"),
        (["rl.max_lag=0", "rollout.engine.tensor_parallel=2"], "placement=colocated"),
    ],
)
def test_what_sharing_can_not_do_is_refused(told: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_config(Path("configs/demo.yaml"), ["name=t", "placement=colocated", *told])
    load_config(Path("configs/demo.yaml"), ["name=t", "placement=colocated", "rl.max_lag=0"])

"""Evaluations between steps: which weights answer, which task waits for which, and the state after an interruption."""

import asyncio
import io
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.audit import failures
from support.plain_loop import plain_loop
from support.plain_pool import Worker, pool_of, settle
from support.pushes import empty_push
from support.scripted_engine import RENDERER, TAGS, ScriptedEngine
from unit.orchestrator.evaluation.test_budget_curve import Tracked, answer
from unit.orchestrator.evaluation.test_evaluation import under
from unit.orchestrator.loop.test_loop import Learner, SlowSource

from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.evaluation.step_evaluations import FIRST_TICKET, StepEvaluations, make_step_evaluations
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.deadline import Deadline, StopFlag, StopRequested, StuckError
from temper.orchestrator.loop.interfaces import DevicePhase, DevicePhases, Evaluations
from temper.orchestrator.loop.loop import Loop
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.step import StepReport
from temper.orchestrator.loop.watches import TooManyFailures
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.run.checkpoint import CheckpointConfig
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.run.metrics_log import MetricsRow, read_metrics
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.run import Run
from temper.orchestrator.session.trainer import scores
from temper.rollout.config import RolloutConfig
from temper.rollout.engines.protocol import Completion, EngineStats, TurnRequest
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.episodes.worker import RolloutWorker
from temper.rollout.trajectory import Failure, FailureKind, Group, Stop, Ticket, Trajectory, WeightVersion
from temper.rollout.vllm_backend import make_agent_server, make_engine
from temper.rollout.weights.delivery import Offered, Push
from temper.rollout.weights.manifest import WeightManifest

EVERY = "rl.eval_every=2"


class Engines:
    """Engines that answer at once, correctly from version 3 on, and record their calls in order.

    If `held`, evaluations wait until their release. If `broken`, evaluations fail.
    """

    def __init__(self, *, held: bool = False, broken: bool = False) -> None:
        self.version = 0
        self.broken = broken
        self.released = asyncio.Event()
        if not held:
            self.released.set()
        self.did: list[str] = []
        self.tickets: list[Ticket] = []
        self.samples: set[int] = set()

    async def run_group(self, ticket: Ticket, samples: int, partial: PartialGroup | None = None) -> Group:
        self.tickets.append(ticket)
        ours, version = ticket.number >= FIRST_TICKET, self.version
        self.samples |= {samples} if ours else set()
        self.did.append(f"{'asks' if ours else 'trains'} {version}")
        await asyncio.sleep(0)
        if not ours:
            answers = (answer(ticket.task, right, under(version)) for right in (True, False))
            return Group(ticket=ticket, trajectories=tuple(answers))
        await self.released.wait()
        self.did.append(f"has {self.version}")
        if self.broken:
            lost = Failure(kind=FailureKind.ENGINE, message="lost")
            failed = Trajectory(task=ticket.task, turns=(), stop=Stop.FAILURE, failure=lost)
            return Group(ticket=ticket, trajectories=(), failed=(failed,) * samples)
        said = answer(ticket.task, version >= 3, under(version, last=self.version))
        return Group(ticket=ticket, trajectories=(said,) * samples)

    async def groups_in_flight(self) -> list[PartialGroup]:
        return []

    async def load_weights(self, push: Push) -> WeightVersion:
        self.version = push.manifest.version
        self.did.append(f"loads {self.version}")
        return push.manifest.weight_version

    async def engine_stats(self) -> EngineStats:
        return EngineStats()


class Session:
    """A run folder with math as its only environment, and the screen output."""

    def __init__(self, place: Path, *overrides: str) -> None:
        settings = ["rl.steps=4", "rl.eval_tasks=3", "rl.eval_samples=2", EVERY, f"runs_dir={place}", *overrides]
        (place / "math.yaml").write_text("name: run\nenvs: {math: {}}\n")
        self.config = load_config(place / "math.yaml", settings)
        self.rl = self.config.section(RlConfig)
        self.folder = RunDir(place / "run")
        self.screen = io.StringIO()
        self.tracked = Tracked()

    def do(self, work: Callable[[Run], Awaitable[Any]]) -> Any:
        self.folder.open()
        self.folder.store(RunState(model="model", label="rl", began={"rl": "model"}, stages={"rl": "rl"}))
        try:
            with Progress(stream=self.screen) as progress:
                stop, tracked = StopFlag(), self.tracked
                run = Run(
                    self.config, folder=self.folder, tracker=tracked, progress=progress, stop=stop, will_train=False
                )
                return asyncio.run(self._do(work, run))
        finally:
            self.folder.close()

    async def _do(self, work: Callable[[Run], Awaitable[Any]], run: Run) -> Any:
        return await work(run)

    @property
    def rows(self) -> list[MetricsRow]:
        return [row for row in read_metrics(self.folder.metrics) if row.stage == "rl.eval"]


async def evaluated(run: Run, config: RlConfig, pool: Any, *steps: int) -> StepEvaluations:
    """Evaluate after each of these steps, one evaluation at a time."""
    found = StepEvaluations(run, config, pool, stage="rl")
    for step in steps:
        found.begin(step, WeightVersion(step=step))
        await found.wait_finished()
    return found


def loop_of(engines: Engines, evaluations: Evaluations, *, max_lag: int, **changes: Any) -> Loop:
    """Build a loop with two groups per step on these engines."""

    async def report(report: StepReport) -> None:
        engines.did.append(f"reports {report.step}")

    plain: dict[str, Any] = {
        "rollouts": engines,
        "learner": Learner(),
        "mixture": Mixture({"math": SlowSource(slow=False)}, {"math": 1.0}),
        "buffer": Buffer(groups_per_step=2, max_lag=max_lag, max_replaced_groups=0),
        "on_step": report,
        "evaluations": evaluations,
    }
    return plain_loop(**plain | changes)


def test_every_so_many_steps_the_weights_after_them_are_evaluated_and_none_comes_from_others(tmp_path: Path) -> None:
    session, engines = Session(tmp_path, "rl.steps=5"), Engines()

    async def run_loop(run: Run) -> None:
        await loop_of(engines, StepEvaluations(run, session.rl, engines, stage="rl"), max_lag=1).run(1, 5)

    session.do(run_loop)
    assert [(row.step, row.values["version"]) for row in session.rows] == [(0, 0.0), (2, 2.0), (4, 4.0), (5, 5.0)]
    assert [row.values["math/avg_at_k"] for row in session.rows] == [0.0, 0.0, 1.0, 1.0]
    assert [row.values["avg_at_k"] for row in session.rows] == [0.0, 0.0, 1.0, 1.0]
    assert {row.values["math/stale"] for row in session.rows} == {0.0}
    assert [path.name for path in session.folder.step_evaluations("rl").values()] == [
        f"rl-{step}.json" for step in (0, 2, 4, 5)
    ]
    assert session.tracked.files == session.folder.artifacts == list(session.folder.step_evaluations("rl").values())
    assert list(session.folder.trajectory_files("rl.eval")) == [0, 2, 4, 5]
    assert "rl step 4: held out: math 1.000 (version 4, " in session.screen.getvalue()


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_a_push_waits_for_the_evaluation_of_the_weights_that_it_replaces(tmp_path: Path, max_lag: int) -> None:
    session = Session(tmp_path, f"rl.max_lag={max_lag}", "rl.loss.token_range=[0.5,5]")

    async def run_loop(run: Run) -> tuple[list[str], list[str]]:
        engines = Engines(held=True)
        evaluations = StepEvaluations(run, session.rl, engines, stage="rl")
        running = asyncio.create_task(loop_of(engines, evaluations, max_lag=max_lag).run(1, 1))
        while engines.did.count("asks 0") < 3 or engines.did.count("trains 0") < 2 * (max_lag + 1) * (max_lag > 0):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        held = list(engines.did)
        engines.released.set()
        await running
        return held, engines.did

    held, did = session.do(run_loop)
    assert "loads 1" not in held
    assert did.index("loads 1") > max(place for place, what in enumerate(did) if what == "has 0")
    if max_lag == 0:  # the evaluation has the engines to itself
        assert held == ["asks 0"] * 3
    else:  # training and evaluation share the engines if lag is allowed
        assert held.count("trains 0") == 2 * (max_lag + 1)


def test_engines_that_share_their_devices_do_not_sleep_under_an_evaluation_though_the_groups_of_a_step_are_there(
    tmp_path: Path,
) -> None:
    session = Session(tmp_path, "rl.max_lag=0")

    async def run_loop(run: Run) -> tuple[list[str], list[str]]:
        engines, version = Engines(held=True), VersionCell(WeightVersion(step=0))

        class Told(DevicePhases):
            async def begin(self, phase: DevicePhase) -> None:
                engines.did.append(phase.name)

        buffer = Buffer(groups_per_step=2, max_lag=0, max_replaced_groups=0)
        mixture = Mixture({"math": SlowSource(slow=False)}, {"math": 1.0})
        for _ in range(2):  # finished groups, as in a checkpoint
            ticket = await buffer.admit(mixture, version)
            await buffer.put(await Engines().run_group(ticket, 2))
        evaluations = StepEvaluations(run, session.rl, engines, stage="rl")
        parts: dict[str, Any] = {"buffer": buffer, "mixture": mixture, "version": version, "device_phases": Told()}
        running = asyncio.create_task(loop_of(engines, evaluations, max_lag=0, **parts).run(1, 1))
        while engines.did.count("asks 0") < 3:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        held = list(engines.did)
        engines.released.set()
        await running
        return held, engines.did[len(held) :]

    held, did = session.do(run_loop)
    assert sorted(held) == ["asks 0"] * 3 + ["sampling"]
    assert did[:6] == ["has 0"] * 3 + ["learning", "pushing", "loads 1"]


def test_at_lag_0_the_groups_that_are_trained_are_those_of_a_run_without_evaluations(tmp_path: Path) -> None:
    session = Session(tmp_path, "rl.max_lag=0")

    async def tickets(run: Run, evaluations: bool) -> list[tuple[int, str, int]]:
        engines = Engines()
        config = session.rl if evaluations else replace(session.rl, eval_every=0)
        made = make_step_evaluations(run, config, engines, stage="rl")
        assert (type(made) is Evaluations) != evaluations
        await loop_of(engines, made, max_lag=0).run(1, 4)
        trained = [one for one in engines.tickets if one.number < FIRST_TICKET]
        return [(one.number, one.task.key, one.admitted.step) for one in trained][:8]

    with_them = session.do(lambda run: tickets(run, True))
    assert len(session.rows) == 3
    assert with_them == session.do(lambda run: tickets(run, False))


def test_each_asks_the_same_once_also_after_an_interruption(tmp_path: Path) -> None:
    session, engines = Session(tmp_path, "rl.eval_sampling.temperature=0"), Engines()  # of 2 samples, all equal
    session.do(lambda run: evaluated(run, session.rl, engines, 0, 2))
    first, second = engines.tickets[:3], engines.tickets[3:]
    assert [one.number for one in first] == [one.number for one in second] == [FIRST_TICKET + n for n in range(3)]
    assert [one.task for one in first] == [one.task for one in second]
    assert all(one.sampling.greedy for one in engines.tickets)
    found = json.loads(session.folder.step_evaluation("rl", 2).read_text())
    assert (engines.samples, found["k"], found["sampling"]["temperature"]) == ({1}, 1, 0)

    async def killed(run: Run) -> None:
        held = Engines(held=True)
        found = StepEvaluations(run, session.rl, held, stage="rl")
        found.begin(4, WeightVersion(step=4))
        while len(held.tickets) < 3:
            await asyncio.sleep(0.001)
        await found.cancel()

    session.do(killed)
    assert [row.step for row in session.rows] == [0, 2]
    again = Engines()
    session.do(lambda run: evaluated(run, session.rl, again, 2, 4))
    assert [row.step for row in session.rows] == [0, 2, 4]
    assert len(again.tickets) == 3  # of step 4 only


def test_a_missing_one_is_made_after_the_step_that_the_stage_resumes_from(tmp_path: Path) -> None:
    session, engines = Session(tmp_path), Engines()
    session.do(lambda run: evaluated(run, session.rl, engines, 1, 2))  # step 1 supersedes the evaluation of step 0
    assert [row.step for row in session.rows] == [1, 2]
    assert "rl step 1: evaluates in place of step 0" in session.screen.getvalue()
    again = Engines()
    session.do(lambda run: evaluated(run, session.rl, again, 3, 4))
    assert [row.step for row in session.rows] == [1, 2, 4]  # no evaluation is missing before step 3


def test_evaluations_after_a_checkpoint_go_with_it_and_an_audit_finds_a_double_one(tmp_path: Path) -> None:
    session, engines = Session(tmp_path), Engines()
    session.do(lambda run: evaluated(run, session.rl, engines, 0, 2, 4))
    assert failures(session.folder) == []

    async def went_back(run: Run) -> None:
        run.truncate_records("rl", 3)

    session.do(went_back)
    assert [row.step for row in session.rows] == [0, 2]
    for kept in (session.folder.step_evaluations("rl"), session.folder.trajectory_files("rl.eval")):
        assert list(kept) == [0, 2]
    lines = session.folder.metrics.read_text().splitlines(keepends=True)
    session.folder.metrics.write_text("".join([*lines, lines[0]]))
    (found,) = failures(session.folder)
    assert "rl.eval: step 0 " in found.what


class Publishing(Learner):
    """Sets an event when its weights are published."""

    def __init__(self) -> None:
        super().__init__()
        self.published = asyncio.Event()

    async def publish(self, version: WeightVersion) -> Push:
        self.published.set()
        return await super().publish(version)


def test_a_stop_does_not_wait_for_an_evaluation_and_the_step_before_is_reported(tmp_path: Path) -> None:
    session = Session(tmp_path)

    async def stopped(run: Run) -> list[str]:
        engines, stop, learner = Engines(held=True), StopFlag(), Publishing()
        evaluations = StepEvaluations(run, session.rl, engines, stage="rl")
        loop = loop_of(engines, evaluations, max_lag=1, stop=stop, learner=learner)
        running = asyncio.create_task(loop.run(1, 4))
        await learner.published.wait()
        await settle()
        stop.set()
        with pytest.raises(StopRequested):
            await running
        return engines.did

    did = session.do(stopped)
    assert "reports 1" in did
    assert not [what for what in did if what.startswith(("loads", "has"))]
    assert session.rows == []


def test_an_evaluation_that_gets_nowhere_ends_by_the_deadline_of_the_stage(tmp_path: Path) -> None:
    session = Session(tmp_path)

    async def stuck(run: Run) -> None:
        engines, limit = Engines(held=True), Deadline(seconds=1.0, setting="rl.timeout_s")
        await loop_of(engines, StepEvaluations(run, session.rl, engines, stage="rl"), max_lag=1, limit=limit).run(1, 4)

    with pytest.raises(StuckError, match=r"evaluation.*rl\.timeout_s"):
        session.do(stuck)


@pytest.mark.parametrize("max_lag", [0, 1])
def test_an_evaluation_of_what_is_down_ends_the_stage_as_its_own_groups_would(tmp_path: Path, max_lag: int) -> None:
    session = Session(tmp_path, f"rl.max_lag={max_lag}", "rl.eval_tasks=40")

    async def down(run: Run) -> None:
        engines = Engines(broken=True)
        await loop_of(engines, StepEvaluations(run, session.rl, engines, stage="rl"), max_lag=max_lag).run(1, 4)

    with pytest.raises(TooManyFailures, match=r"engine.*'math'.*rl\.max_failures"):
        session.do(down)
    assert session.rows == []


class VersionedEngine(ScriptedEngine):
    async def generate(self, request: TurnRequest) -> Completion:
        said = await super().generate(request)
        return replace(said, versions_T=(self._version.step,) * len(said.token_ids))


class StaleEngine(VersionedEngine):
    """Confirms a push but keeps its old weights."""

    async def load_weights(self, manifest: WeightManifest, offer: object, *, number: int) -> WeightVersion:
        return manifest.weight_version


class EngineWorker(Worker):
    """A rollout worker with an engine in this process."""

    def __init__(self, name: str, engine: ScriptedEngine) -> None:
        super().__init__(name=name)
        self.worker = RolloutWorker(
            RolloutConfig(), seed=1, make_engine=make_engine, make_agent_server=make_agent_server
        )
        self.worker.attach(engine, RENDERER, TAGS)

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, partial: PartialGroup | None) -> Group:
        return await self.worker.run_group(ticket, samples, attempt, partial)

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        return await self.worker.load_weights(manifest, await offer, number)


@pytest.mark.parametrize("stale", [True, False])
def test_a_worker_that_serves_an_older_version_voids_the_score(tmp_path: Path, stale: bool) -> None:
    session = Session(tmp_path)
    told = ["2 and 2\n</think>\n\\boxed{4}"]

    async def evaluate(run: Run) -> None:
        second = (StaleEngine if stale else VersionedEngine)(told)
        pool = await pool_of([EngineWorker("good", VersionedEngine(told)), EngineWorker("second", second)])
        version = await pool.load_weights(empty_push(1, nbytes=0))
        evaluations = StepEvaluations(run, session.rl, pool, stage="rl")
        evaluations.begin(2, version)
        await evaluations.wait_finished()
        await pool.close()
        await settle()

    session.do(evaluate)
    (row,) = session.rows
    if not stale:
        assert (row.values["math/stale"], row.values["math/samples"]) == (0.0, 6.0)
        assert row.values["avg_at_k"] == row.values["math/avg_at_k"] == 0.0
        return
    assert (row.values["math/stale"], row.values["math/samples"]) == (2.0, 0.0)
    assert math.isnan(row.values["math/avg_at_k"])
    assert math.isnan(row.values["avg_at_k"])  # half of the environments give no score
    assert "rl step 2: the score of math is stale: 2 answers" in session.screen.getvalue()


def test_the_best_checkpoint_is_that_of_the_best_evaluation(tmp_path: Path) -> None:
    session = Session(tmp_path)

    async def measured(run: Run) -> list[dict[int, float]]:
        for step, value in ((0, 0.1), (2, 0.6), (4, 0.5)):
            run.metrics.append("rl.eval", step, {"math/avg_at_k": value, "avg_at_k": value / 2})
        for step in range(1, 5):
            run.metrics.append("rl", step, {"env/math/reward": step / 10})
        names = ("eval/avg_at_k", "eval/math/avg_at_k", "env/math/reward", "eval/gone")
        return [scores(run.rows, "rl", CheckpointConfig(best=name)) for name in names]

    over_all, of_math, of_steps, gone = session.do(measured)
    assert over_all == {0: 0.05, 2: 0.3, 4: 0.25}
    assert of_math == {0: 0.1, 2: 0.6, 4: 0.5}
    assert of_steps == pytest.approx({1: 0.1, 2: 0.15, 3: 0.2, 4: 0.25})  # mean over the steps so far
    assert gone == {}


@pytest.mark.parametrize("setting", ["rl.eval_every=-1", "rl.eval_tasks=0", "rl.eval_samples=0"])
def test_impossible_settings_are_named(tmp_path: Path, setting: str) -> None:
    with pytest.raises(ValueError, match=r"rl\.eval_every="):
        Session(tmp_path, setting)

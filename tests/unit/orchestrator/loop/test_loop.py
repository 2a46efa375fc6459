"""The loop of rl and distill with instant engines and an instant learner: its waits, and its state at the end."""

import asyncio
import io
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.plain_loop import plain_loop
from support.pushes import empty_push
from support.turns import turn_of
from unit.orchestrator.evaluation.test_budget_curve import Tracked

from temper.envs.core.process import LearnerDied, StoredResult
from temper.envs.core.task import EnvRef, Task
from temper.learner.batches.builder import BuildBatches
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.config.supervised import RftConfig
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.deadline import Deadline, StopFlag, StuckError
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.step import StepPart, StepReport
from temper.orchestrator.loop.watches import NothingTrained
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.pipeline.plan import single_instance
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.engines import Engines
from temper.orchestrator.session.run import Run
from temper.orchestrator.session.trainer import Trainer
from temper.orchestrator.stages.loop_stage import LoopStage
from temper.orchestrator.stages.registry import RFT, RL
from temper.orchestrator.stages.step_metrics import step_metrics
from temper.orchestrator.stages.supervised_loop import sample_once
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.episodes.resume import PartialGroup
from temper.rollout.trajectory import Group, Stop, Ticket, Times, Trajectory, WeightVersion
from temper.rollout.weights.delivery import Push

SLOW_S = 0.8
LIMIT = Deadline(seconds=20, setting="rl.timeout_s")
TURN = turn_of((3, 4), context=(1, 2), text="an answer")
TIMES = Times(queue_s=0.25, generate_s=0.5, step_s=0.125)


class SlowSource:
    """Generates tasks slowly and records their order."""

    def __init__(self, *, slow: bool = True) -> None:
        self.slow = slow
        self.made: list[int] = []

    def task(self, index: int) -> Task:
        time.sleep(SLOW_S if self.slow and index == 0 else 0)
        self.made.append(index)
        return Task(env=EnvRef(name="math"), key=str(index), messages=({"role": "user", "content": "?"},), spec={})


class Rollouts:
    """Answers the groups up to `last` at once, and later groups never."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.started = self.running = self.cancelled = 0
        self.passes = 1000  # passes of sampling before the loop

    async def run_group(self, ticket: Ticket, samples: int, partial: PartialGroup | None) -> Group:
        self.passes += 3
        self.started += 1
        self.running += 1
        try:
            await asyncio.sleep(0 if ticket.number <= self.last else 1000)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        answers = (
            Trajectory(task=ticket.task, turns=(TURN,), stop=Stop.ENV, reward=reward, seconds=1.0 + reward, times=TIMES)
            for reward in (0.0, 1.0)
        )
        return Group(ticket=ticket, trajectories=tuple(answers))

    async def groups_in_flight(self) -> list[PartialGroup]:
        return []

    async def load_weights(self, push: Push) -> WeightVersion:
        return push.manifest.weight_version

    async def engine_stats(self) -> EngineStats:
        passes, self.passes = self.passes, 0
        return EngineStats(passes=passes)


class Learner:
    """Trains nothing. Skips every step, or none."""

    is_stuck = False

    def __init__(self, *, skipped: bool = False) -> None:
        self.skipped = skipped

    async def token_records(self) -> list[StoredResult]:
        return []

    async def build(self, groups: Sequence[Group], builds: BuildBatches) -> None: ...

    async def step(self, *, epochs: int = 1) -> dict[str, float]:
        return {"skipped": float(self.skipped)}

    async def publish(self, version: WeightVersion) -> Push:
        return empty_push(version.step, nbytes=64)


async def nothing(told: object) -> None: ...


async def longest_silence(source: SlowSource, rollouts: Rollouts) -> float:
    """Return the longest time in seconds that blocks the event loop in two steps with slow tasks and slow batches."""
    silences = [0.0]

    async def beat() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            silences.append(time.monotonic() - before)

    def slow_batches(groups: list[Group]) -> None:
        time.sleep(SLOW_S)

    async def ignore(report: StepReport) -> None: ...

    beating = asyncio.create_task(beat())
    loop = plain_loop(
        rollouts=rollouts,
        learner=Learner(),
        mixture=Mixture({"math": source}, {"math": 1.0}),
        buffer=Buffer(groups_per_step=2, max_lag=1, max_replaced_groups=0),
        build_batches=slow_batches,
        on_step=ignore,
    )
    await loop.run(1, 2)
    beating.cancel()
    return max(silences)


def test_tasks_and_batches_are_made_beside_the_event_loop_and_groups_in_flight_end_with_the_loop() -> None:
    source, rollouts = SlowSource(), Rollouts(last=3)
    assert asyncio.run(longest_silence(source, rollouts)) < SLOW_S
    assert source.made == list(range(len(source.made)))
    assert (rollouts.running, rollouts.cancelled) == (0, rollouts.started - 4)
    assert 0 <= len(source.made) - rollouts.started <= 1  # the loop may end after it makes the last task
    assert rollouts.cancelled > 0


class BreakingRollouts(Rollouts):
    """Fails a group or a push after the step `after`."""

    def __init__(
        self, *, group: Exception | None = None, push: Exception | None = None, after: int, last: int = 10**6
    ) -> None:
        super().__init__(last)
        self.group, self.push, self.after = group, push, after
        self.learning = asyncio.Event()

    async def run_group(self, ticket: Ticket, samples: int, partial: PartialGroup | None) -> Group:
        if self.group is not None and ticket.number >= 2 * self.after:
            await self.learning.wait()
            raise self.group
        return await super().run_group(ticket, samples, partial)

    async def load_weights(self, push: Push) -> WeightVersion:
        if self.push is not None and push.manifest.version > self.after:
            raise self.push
        return await super().load_weights(push)


class SlowLearner(Learner):
    """Lets a group fail while the learner trains."""

    def __init__(self, rollouts: BreakingRollouts, *, breaks_at: int = 0) -> None:
        super().__init__()
        self.rollouts = rollouts
        self.breaks_at = breaks_at
        self.done = 0

    async def step(self, *, epochs: int = 1) -> dict[str, float]:
        if self.done + 1 == self.breaks_at:
            raise RuntimeError("no memory for a gradient")
        self.rollouts.learning.set()
        await asyncio.sleep(0.02)
        self.done += 1
        return await super().step()


def no_batches(groups: list[Group]) -> None: ...


def unbuildable(groups: list[Group]) -> None:
    raise ValueError("no batch can be made of them")


class Ended:
    def __init__(
        self, rollouts: BreakingRollouts, learner: Learner, *, max_lag: int = 1, build_batches: Any = no_batches
    ) -> None:
        self.reported: list[int] = []
        self.learning: list[int] = []
        self.in_flight: list[int] = []
        self.rollouts = rollouts
        self.buffer = Buffer(groups_per_step=2, max_lag=max_lag, max_replaced_groups=0)
        self.version = VersionCell(WeightVersion(step=0))
        self.error = asyncio.run(self._error(learner, build_batches))

    async def _error(self, learner: Learner, build_batches: Any) -> BaseException:
        async def report(report: StepReport) -> None:
            self.reported.append(report.step)

        async def note(fault: Exception) -> None:
            self.learning.append(self.loop.learning)
            self.in_flight.append(self.rollouts.running)
            self.buffer.return_taken()

        self.loop = plain_loop(
            rollouts=self.rollouts,
            learner=learner,
            mixture=Mixture({"math": SlowSource(slow=False)}, {"math": 1.0}),
            buffer=self.buffer,
            version=self.version,
            build_batches=build_batches,
            on_step=report,
            on_fault=note,
        )
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await self.loop.run(1, 10)
        return caught.value


class Told(Rollouts):
    def __init__(self, loading: Callable[["Told", int], Awaitable[object]]) -> None:
        super().__init__(last=10**6)
        self.loading = loading
        self.did: list[str] = []

    async def load_weights(self, push: Push) -> WeightVersion:
        self.did.append(f"loads {push.manifest.version}")
        await self.loading(self, push.manifest.version)
        self.did.append(f"loaded {push.manifest.version}")
        return await super().load_weights(push)


class TellingLearner(Learner):
    """Records its steps and pushes in the log of the rollouts. Sends weights by this transport."""

    def __init__(self, rollouts: Told, *, transport: str) -> None:
        super().__init__()
        self.rollouts, self.transport = rollouts, transport
        self.steps = 0

    async def step(self, *, epochs: int = 1) -> dict[str, float]:
        self.steps += 1
        self.rollouts.did.append(f"learns {self.steps}")
        await asyncio.sleep(0.01)
        return await super().step(epochs=epochs)

    async def publish(self, version: WeightVersion) -> Push:
        self.rollouts.did.append(f"publishes {version.step}")
        return empty_push(version.step, nbytes=64, transport=self.transport)


async def told_steps(
    rollouts: Told, *, max_lag: int, transport: str = "shared_memory", limit: Deadline = LIMIT, slots: int | None = None
) -> list[StepReport]:
    """Run three steps and return their reports. The rollouts log them too."""
    reports: list[StepReport] = []

    async def keep(report: StepReport) -> None:
        rollouts.did.append(f"reports {report.step}")
        reports.append(report)

    async def save(step: int) -> None:
        rollouts.did.append(f"saves {step} as version {loop.version.learnt.step}")

    loop = plain_loop(
        rollouts=rollouts,
        learner=TellingLearner(rollouts, transport=transport),
        mixture=Mixture({"math": SlowSource(slow=False)}, {"math": 1.0}),
        buffer=Buffer(groups_per_step=2, max_lag=max_lag, max_replaced_groups=0, slots=slots),
        on_step=keep,
        save=save,
        limit=limit,
    )
    await loop.run(1, 3)
    assert (loop.version.value, loop.version.learnt) == (WeightVersion(step=3), WeightVersion(step=3))
    return reports


def step_in_turn(n: int) -> list[str]:
    load = [f"publishes {n}", f"loads {n}", f"loaded {n}"]
    return [f"learns {n}", *load, f"reports {n}", f"saves {n} as version {n}"]


@pytest.mark.parametrize(("max_lag", "transport"), [(0, "shared_memory"), (1, "broadcast"), (1, "cuda_ipc")])
def test_a_step_waits_for_the_engines_at_lag_0_and_where_the_learner_sends_while_they_load(
    max_lag: int, transport: str
) -> None:
    rollouts = Told(lambda told, version: asyncio.sleep(0.05))
    reports = asyncio.run(told_steps(rollouts, max_lag=max_lag, transport=transport))
    assert rollouts.did == [*step_in_turn(1), *step_in_turn(2), *step_in_turn(3)]
    assert all(report.times.seconds[StepPart.LOAD] >= report.load_s >= 0.049 for report in reports)


def test_the_next_step_is_learnt_while_the_engines_load_and_pushes_come_one_after_the_other() -> None:
    async def until_the_next_step(told: Told, version: int) -> None:
        while version < 3 and f"learns {version + 1}" not in told.did:
            await asyncio.sleep(0.001)

    rollouts = Told(until_the_next_step)
    reports = asyncio.run(told_steps(rollouts, max_lag=1))
    told = [what for what in rollouts.did if not what.startswith("loads") and what != "loaded 3"]
    assert told == [
        *("learns 1", "publishes 1", "reports 1", "saves 1 as version 1"),
        *("learns 2", "loaded 1", "publishes 2", "reports 2", "saves 2 as version 2"),
        *("learns 3", "loaded 2", "publishes 3", "reports 3", "saves 3 as version 3"),
    ]
    assert [report.version.step for report in reports] == [0, 1, 2]
    assert [report.load_s > 0 for report in reports] == [False, True, True]  # the load of the previous push
    lags = [report.version.step - group.ticket.admitted.step for report in reports for group in report.groups]
    assert lags == [0, 0, 1, 1, 1, 1]


def test_with_few_slots_a_step_waits_for_those_of_the_push_and_its_deadline_for_the_load() -> None:
    rollouts = Told(lambda told, version: asyncio.sleep(1.0 if version == 1 else 0))
    limit = Deadline(seconds=0.7, setting="rl.timeout_s")
    asyncio.run(told_steps(rollouts, max_lag=1, slots=3, limit=limit))
    assert rollouts.did.index("loaded 1") < rollouts.did.index("learns 2")


def test_a_fault_of_the_sampling_side_waits_until_the_step_is_learnt_and_reported() -> None:
    rollouts = BreakingRollouts(group=OSError("a group fails"), after=2)
    learner = SlowLearner(rollouts)
    ended = Ended(rollouts, learner)
    assert str(ended.error) == "a group fails"
    assert ended.reported == [*range(1, learner.done + 1)]
    assert learner.done in (1, 2)  # the second step's groups may finish before the fault
    assert ended.learning == [learner.done]


def test_groups_are_waited_for_anew_while_workers_are_replaced() -> None:
    class Late(Rollouts):
        async def run_group(self, ticket: Ticket, samples: int, partial: PartialGroup | None) -> Group:
            await asyncio.sleep(0.5)
            raise OSError("the group came")

    async def end(last_restart_at: Callable[[], float]) -> None:
        loop = plain_loop(
            rollouts=Late(last=0),
            learner=Learner(),
            mixture=Mixture({"math": SlowSource(slow=False)}, {"math": 1.0}),
            buffer=Buffer(groups_per_step=1, max_lag=0, max_replaced_groups=0),
            limit=Deadline(seconds=0.1, setting="rl.timeout_s"),
            last_restart_at=last_restart_at,
        )
        await loop.run(1, 1)

    with pytest.raises(StuckError, match="math/0"):
        asyncio.run(end(lambda: 0.0))
    with pytest.raises(OSError, match="the group came"):
        asyncio.run(end(time.monotonic))


@pytest.mark.parametrize("max_lag", [0, 1])
def test_a_fault_of_a_push_lets_the_step_be_reported_with_the_version_of_its_weights(max_lag: int) -> None:
    rollouts = BreakingRollouts(push=ValueError("damaged"), after=1, last=3)
    ended = Ended(rollouts, SlowLearner(rollouts), max_lag=max_lag)
    assert (str(ended.error), ended.reported, ended.learning) == ("damaged", [1, 2], [2])
    assert (ended.version.learnt, ended.version.value) == (WeightVersion(step=2), WeightVersion(step=1))
    assert ended.in_flight[0] > 0 or max_lag == 0  # partial samples can be saved too
    assert rollouts.running == 0


def test_a_fault_of_a_push_beside_the_next_step_lets_that_be_reported_too() -> None:
    class LoadsSlowly(BreakingRollouts):
        async def load_weights(self, push: Push) -> WeightVersion:
            if push.manifest.version == 2:
                self.learning.clear()
                await self.learning.wait()  # until the third step begins
            return await super().load_weights(push)

    rollouts = LoadsSlowly(push=ValueError("damaged"), after=1)
    ended = Ended(rollouts, SlowLearner(rollouts))
    assert (str(ended.error), ended.reported, ended.learning) == ("damaged", [1, 2, 3], [3])
    assert (ended.version.learnt, ended.version.value) == (WeightVersion(step=3), WeightVersion(step=1))
    assert (ended.buffer.totals().trained, ended.buffer.state().tickets) == (6, ())  # both steps keep their slots


def test_the_death_of_the_learner_in_a_push_ends_the_loop_with_the_step_unreported() -> None:
    rollouts = BreakingRollouts(push=LearnerDied("rank 0 died"), after=1)
    ended = Ended(rollouts, SlowLearner(rollouts), max_lag=0)
    assert (str(ended.error), ended.reported, ended.learning) == ("rank 0 died", [1], [2])


def test_the_loop_does_not_end_before_the_engines_have_loaded_what_they_began_to() -> None:
    loaded: list[int] = []

    class LoadsLong(BreakingRollouts):
        async def load_weights(self, push: Push) -> WeightVersion:
            await asyncio.sleep(0.3)
            loaded.append(push.manifest.version)
            return await super().load_weights(push)

    rollouts = LoadsLong(after=0)
    ended = Ended(rollouts, SlowLearner(rollouts, breaks_at=2))
    assert (str(ended.error), ended.reported, ended.learning, loaded) == ("no memory for a gradient", [1], [2], [1])


def test_groups_of_a_step_that_the_learner_did_not_begin_wait_again() -> None:
    rollouts = BreakingRollouts(after=0)
    ended = Ended(rollouts, SlowLearner(rollouts), build_batches=unbuildable)
    assert (str(ended.error), ended.reported, ended.learning) == ("no batch can be made of them", [], [0])
    assert [one.held for one in ended.buffer.state().groups][:2] == ["ready", "ready"]


TAKES_S = {
    StepPart.BATCH: 0.02,
    StepPart.LEARN: 0.03,
    StepPart.PUBLISH: 0.02,
    StepPart.LOAD: 0.02,
    StepPart.LOG: 0.025,
    StepPart.SAVE: 0.035,
}


class TimedRollouts(Rollouts):
    """Answers some time after the previous step is saved, and loads weights for a time from `TAKES_S`.

    Each report is after `published`, or after `loaded` if a step waits for the engines. It is before `asked`.
    """

    def __init__(self) -> None:
        super().__init__(last=10**6)
        self.loaded: list[float] = []
        self.published: list[float] = []
        self.asked: list[float] = []
        self.saved = 0

    async def engine_stats(self) -> EngineStats:
        self.asked.append(time.monotonic())
        return await super().engine_stats()

    async def run_group(self, ticket: Ticket, samples: int, partial: PartialGroup | None) -> Group:
        while self.saved < ticket.number // 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        return await super().run_group(ticket, samples, partial)

    async def load_weights(self, push: Push) -> WeightVersion:
        await asyncio.sleep(TAKES_S[StepPart.LOAD])
        self.loaded.append(time.monotonic())
        return await super().load_weights(push)


class TimedLearner(Learner):
    """Learns and publishes for times from `TAKES_S`."""

    def __init__(self, rollouts: TimedRollouts) -> None:
        super().__init__()
        self.rollouts = rollouts

    async def step(self, *, epochs: int = 1) -> dict[str, float]:
        await asyncio.sleep(TAKES_S[StepPart.LEARN])
        return await super().step(epochs=epochs)

    async def publish(self, version: WeightVersion) -> Push:
        await asyncio.sleep(TAKES_S[StepPart.PUBLISH])
        self.rollouts.published.append(time.monotonic())
        return await super().publish(version)


async def timed_steps(steps: int, *, max_lag: int) -> tuple[list[StepReport], TimedRollouts]:
    """Run steps with known durations. Return the reports and the rollouts, which record the report times."""
    reports: list[StepReport] = []
    rollouts = TimedRollouts()

    def slow_batches(groups: list[Group]) -> None:
        time.sleep(TAKES_S[StepPart.BATCH])

    async def keep(report: StepReport) -> None:
        reports.append(report)
        await asyncio.sleep(TAKES_S[StepPart.LOG])

    async def save(step: int) -> None:
        await asyncio.sleep(TAKES_S[StepPart.SAVE])
        rollouts.saved = step

    loop = plain_loop(
        rollouts=rollouts,
        learner=TimedLearner(rollouts),
        mixture=Mixture({"math": SlowSource(slow=False)}, {"math": 1.0}),
        buffer=Buffer(groups_per_step=2, max_lag=max_lag, max_replaced_groups=0),
        build_batches=slow_batches,
        on_step=keep,
        save=save,
    )
    await loop.run(1, steps)
    return reports, rollouts


@pytest.mark.parametrize("max_lag", [0, 1])
def test_the_phases_of_a_step_add_up_to_the_time_from_one_report_to_the_next(max_lag: int) -> None:
    reports, made = asyncio.run(timed_steps(4, max_lag=max_lag))
    totals = list(itertools.accumulate(report.times.total for report in reports))
    asked = made.asked[1:]  # the first request precedes the first step
    before = made.loaded if max_lag == 0 else made.published
    for step in range(1, 4):  # holds under other load on the machine
        since_the_first = totals[step] - totals[0]
        assert before[step] - asked[0] <= since_the_first <= asked[step] - before[0]
    for report in reports[1:]:  # log and save times belong to the previous step
        spent = report.times.seconds | {StepPart.LOAD: report.load_s}
        assert all(spent[phase] >= least - 0.001 for phase, least in TAKES_S.items())
        assert max_lag > 0 or report.times.seconds[StepPart.LOAD] >= report.load_s
    if max_lag == 0:
        assert all(report.times.seconds[StepPart.WAIT] >= 0.01 for report in reports)
    metrics = step_metrics(reports[-1])
    phases = [metrics[f"time/{phase.value}_s"] for phase in StepPart]
    assert sum(phases) == pytest.approx(metrics["time/step_s"])
    assert sum(metrics[f"buffer/{name}"] for name in ("free", "making", "generating", "ready", "training")) == (
        pytest.approx(metrics["buffer/slots"])
    )


def test_a_step_says_what_episodes_waited_for_and_what_the_engines_did() -> None:
    reports, _ = asyncio.run(timed_steps(1, max_lag=0))
    metrics = step_metrics(reports[0])
    episode = {name.removeprefix("episode/"): value for name, value in metrics.items() if name.startswith("episode/")}
    assert episode == {"s": 1.5, "queue_s": 0.25, "generate_s": 0.5, "step_s": 0.125, "rest_s": 0.625, "longest_s": 2.0}
    assert (metrics["engine/passes"], metrics["env/math/step_s"]) == (6.0, 0.125)


class ToldTrainer(Trainer):
    skips = True

    async def begin(self, name: str, **_told: Any) -> Any:
        return Learner(skipped=self.skips), 0


class ToldEngines(Engines):
    async def serve(self, model: Path, *, who: str) -> Any:
        return Rollouts(last=10**6)


class ToldRun(Run):
    def __init__(self, config: RunConfig, *, folder: RunDir, progress: Progress) -> None:
        super().__init__(config, folder=folder, tracker=Tracked(), progress=progress, stop=StopFlag(), will_train=True)
        self.trainer = ToldTrainer(self)
        self.engines = ToldEngines(self, start_learner=None)


def told_folder(place: Path) -> RunDir:
    byte_tokenizer().save_pretrained(place / "model")
    (place / "model" / "config.json").write_text("{}", encoding="ascii")
    folder = RunDir(place / "run")
    folder.open()
    folder.store(RunState(model=str(place / "model")))
    return folder


def test_steps_that_are_skipped_one_after_the_other_end_the_stage_with_their_trajectories_on_disk(
    tmp_path: Path,
) -> None:
    config = load_config(Path("configs/demo.yaml"), ["rl.groups_per_step=2", "rl.max_lag=0", "learner.max_skipped=3"])
    folder = told_folder(tmp_path)
    with Progress(stream=io.StringIO()) as progress:
        run = ToldRun(config, folder=folder, progress=progress)
        stage = LoopStage(run, config.section(RlConfig), single_instance(RL))
        with pytest.raises(NothingTrained, match=r"1 to 3.*max_skipped=3"):
            asyncio.run(stage.run())
    folder.close()
    assert {path.name for path in folder.trajectories.iterdir()} == {"rl-1.jsonl", "rl-2.jsonl", "rl-3.jsonl"}
    assert "an answer" in (folder.trajectories / "rl-3.jsonl").read_text()


class NeverMade:
    def __init__(self) -> None:
        self.given_up = threading.Event()

    def task(self, index: int) -> Task:
        self.given_up.wait(20.0)
        raise AssertionError("nobody waits any more")


def test_tasks_that_are_never_made_end_the_sampling_of_own_answers_by_its_deadline(
    tmp_path: Path, folder: RunDir
) -> None:
    source = NeverMade()
    config = load_config(Path("configs/demo.yaml"), ["rft.timeout_s=0.05"])
    folder.store(RunState(model=str(tmp_path / "model")))
    with Progress(stream=io.StringIO()) as progress:
        run = ToldRun(config, folder=folder, progress=progress)
        mixture, instance = Mixture({"math": source}, {"math": 1.0}), single_instance(RFT)
        sampling = config.section(RftConfig)
        began = time.monotonic()
        with pytest.raises(StuckError, match=r"rft.timeout_s"):
            asyncio.run(sample_once(run, sampling, mixture, instance=instance, lines=lambda draw, group: [], wanted=""))
    assert time.monotonic() - began < 5
    source.given_up.set()

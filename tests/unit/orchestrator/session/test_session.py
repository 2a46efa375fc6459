"""Calls of the stages to a learner that records calls or hangs in one: one save each, and no endless wait."""

import asyncio
import errno
import io
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import with_checkpoint
from unit.orchestrator.evaluation.test_budget_curve import Tracked

from temper.envs.core.process import LearnerDied, ProcessInfo
from temper.learner.config import OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.models.fresh import byte_tokenizer
from temper.learner.training_state import LoadedModel
from temper.orchestrator.loop.deadline import StopFlag, StopRequested, StuckError
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.pipeline.plan import single_instance
from temper.orchestrator.pipeline.runner import finish, run_with_restart
from temper.orchestrator.run.checkpoint import DamagedCheckpointError, latest, place, steps
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.run.metrics_log import read_metrics
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.engines import Engines as HeldEngines
from temper.orchestrator.session.run import Run
from temper.orchestrator.session.trainer import BackgroundWriter, Trainer
from temper.orchestrator.stages.registry import all_stages
from temper.orchestrator.stages.stage import StageInstance
from temper.rollout.pool.restarts import TooManyRestarts
from temper.rollout.trajectory import WeightVersion

SHORT = ["deadlines.start_s=0.1", "deadlines.files_s=0.1", "deadlines.megabytes_per_s=1000000"]


class Learner:
    """A learner group that records its calls and may hang in one of them."""

    is_stuck = False
    loaded = LoadedModel()

    def __init__(self, hangs_in: str = "", *, breaks: Exception | None = None) -> None:
        """The error `breaks` is raised by the write of a checkpoint."""
        self.hangs_in = hangs_in
        self.breaks = breaks
        self.calls: list[str] = []

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        if name == self.hangs_in:
            await asyncio.sleep(1000)

    async def use_threads(self, threads: int) -> None:
        await self._called("use_threads")

    async def load(self, model_dir: Path, **_told: Any) -> None:
        await self._called("load")

    async def restore(self, directory: Path) -> None:
        await self._called("restore")

    async def load_reference(self) -> None:
        await self._called("load_reference")

    async def checkpoint_bytes(self) -> int:
        await self._called("checkpoint_bytes")
        return 1000

    async def save(self, directory: Path) -> bool:
        await self._called("save")
        self.directory = directory
        return True

    async def write(self) -> None:
        await self._called("write")
        if self.breaks is not None:
            raise self.breaks
        (self.directory / "model.safetensors").write_bytes(b"weights")

    async def close(self) -> None:
        await self._called("close")


async def begun(run: Run, loss: LossConfig) -> int:
    """Begin a stage of ten steps. Return the last finished step."""
    _, done = await run.trainer.begin("rl", optim=OptimConfig(), loss=loss, steps=10, beside_engines=False)
    return done


def on_a_run(folder: Path, learner: Learner, work: Callable[[Run], Awaitable[Any]], *overrides: str) -> Any:
    byte_tokenizer().save_pretrained(folder / "model")
    (folder / "model" / "config.json").write_text('{"model_type": "llama"}')
    place = RunDir(folder / "run")
    place.open()
    place.store(RunState(model=str(folder / "model")))
    config = load_config(Path("configs/demo.yaml"), list(overrides))
    with Progress(stream=io.StringIO()) as progress:
        run = Run(config, folder=place, tracker=Tracked(), progress=progress, stop=StopFlag(), will_train=True)
        run.trainer.learner = learner  # type: ignore[assignment]
        try:
            return asyncio.run(_awaited(work(run)))
        finally:
            place.close()


def test_a_stage_that_has_trained_more_than_it_has_to_is_done_with_what_it_trained(tmp_path: Path) -> None:
    said = io.StringIO()

    async def work(run: Run) -> dict[str, int]:
        with_checkpoint(run.folder, "rl", 25)
        stages = {name: single_instance(stage) for name, stage in all_stages().items()}
        with Progress(stream=said) as progress:
            run.progress = progress
            finish(run, stages["init"], wanted=0)
            finish(run, stages["sft"], wanted=7)
            finish(run, stages["rl"], wanted=10)
        return run.folder.state().done

    assert on_a_run(tmp_path, Learner(), work) == {"init": 0, "sft": 7, "rl": 25}
    assert "rl: rl.steps=10 is less than the 25 trained steps" in said.getvalue()
    assert "sft" not in said.getvalue()


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


def test_a_step_that_is_saved_already_is_not_saved_again_and_is_continued_from(tmp_path: Path) -> None:
    async def saved(run: Run) -> None:
        assert await begun(run, LossConfig()) == 0
        for _ in range(2):
            await run.trainer.save("rl", 5, {"loop.json": "{}"})
        assert (await run.trainer.wait_for_model("rl")).name == "000005"

    learner = Learner()
    on_a_run(tmp_path, learner, saved)
    assert learner.calls == ["use_threads", "load", "checkpoint_bytes", "save", "write"]
    later = Learner()
    near = LossConfig(kl_coefficient=0.1)
    assert on_a_run(tmp_path, later, lambda run: begun(run, near)) == 5
    assert later.calls == [
        "use_threads",
        "load",
        "restore",
        "load_reference",
        "checkpoint_bytes",
    ]  # the reference is the stage's first model


@pytest.mark.parametrize("loss", [LossConfig(kl_coefficient=0.1), LossConfig()])
def test_what_a_continued_stage_is_compared_with_is_verified_too(tmp_path: Path, loss: LossConfig) -> None:
    async def saved(run: Run) -> None:
        run.trainer.learner = Learner()  # type: ignore[assignment]
        await run.trainer.save("sft", 3, {})
        await run.trainer.save("rl", 5, {})
        before = await run.trainer.wait_for_model("sft")
        run.folder.store(replace(run.folder.state(), began={"rl": str(before.relative_to(run.folder.root))}))
        (before / "model.safetensors").write_bytes(b"damaged")
        assert await begun(run, loss) == 5

    if loss.needs_reference:
        with pytest.raises(DamagedCheckpointError, match="sft/000003"):
            on_a_run(tmp_path, Learner(), saved)
    else:
        on_a_run(tmp_path, Learner(), saved)


@pytest.mark.parametrize(
    ("call", "setting"),
    [
        ("use_threads", "deadlines.start_s"),
        ("load", "deadlines.files_s"),
        ("load_reference", "deadlines.files_s"),
        ("save", "deadlines.files_s"),
        ("write", "deadlines.files_s"),
    ],
)
def test_a_learner_that_hangs_is_not_waited_for_for_ever_and_the_setting_is_named(
    tmp_path: Path, call: str, setting: str
) -> None:
    async def work(run: Run) -> None:
        await begun(run, LossConfig(kl_coefficient=0.1))
        await run.trainer.save("rl", 5, {})
        await run.trainer.wait_written()

    with pytest.raises(StuckError, match=setting):
        on_a_run(tmp_path, Learner(call), work, *SHORT)
    assert not list((tmp_path / "run").rglob("*.unfinished"))


class HealthyLearner(Learner):
    def processes(self, *, restarts: int) -> list[ProcessInfo]:
        return []

    def kill(self) -> None:
        self.calls.append("kill")


class Healing(Trainer):
    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.started: list[HealthyLearner] = []

    async def start(self, name: str) -> Any:
        if self.learner is None:
            self.started.append(HealthyLearner())
            self.learner = self.started[-1]  # type: ignore[assignment]
        return self.learner


def dying(deaths: int, *, saved: int = 0) -> Callable[[Run, Any, StageInstance], Awaitable[Path]]:
    """Build a stage whose learner fails `deaths` times. The first attempt saves the step `saved`."""
    begun_after: list[int] = []

    async def stage(run: Run, config: Any, instance: StageInstance) -> Path:
        begun_after.append(await begun(run, LossConfig()))
        if len(begun_after) <= deaths:
            if saved and len(begun_after) == 1:
                await run.trainer.save("rl", saved, {})
            raise LearnerDied(f"the learner's rank {len(begun_after)} died")
        return Path(str(begun_after))

    return stage


def healed_run(folder: Path, deaths: int, *overrides: str, saved: int = 0) -> tuple[Path | None, list[list[str]], str]:
    """Run a stage whose learner fails. Return its result, the calls to each learner, and the notes."""
    said = io.StringIO()
    started: list[HealthyLearner] = []

    async def work(run: Run) -> Path | None:
        run.trainer = trainer = Healing(run)
        trainer.started = started
        stage = replace(all_stages()["rl"], run=dying(deaths, saved=saved))
        with Progress(stream=said) as progress:
            run.progress = progress
            return await run_with_restart(
                run, single_instance(stage), load_config(Path("configs/demo.yaml"), list(overrides))
            )

    try:
        result = on_a_run(folder, Learner(), work, *overrides)
    except TooManyRestarts as error:
        said.write(str(error))
        result = None
    return result, [learner.calls for learner in started], said.getvalue()


def test_a_stage_whose_learner_dies_goes_on_from_its_newest_checkpoint_with_new_ranks(tmp_path: Path) -> None:
    result, calls, said = healed_run(tmp_path, 2, saved=5)
    assert result == Path("[0, 5, 5]")
    assert calls == [
        ["use_threads", "load", "checkpoint_bytes", "save", "write", "kill"],
        ["use_threads", "load", "restore", "checkpoint_bytes", "kill"],
        ["use_threads", "load", "restore", "checkpoint_bytes"],
    ]
    assert "the learner has new ranks, which resume after step 5" in said
    events = [row.event for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert [event and event["kind"] for event in events] == ["fault", "restarted"] * 2


def test_a_learner_that_dies_too_often_ends_the_run_with_the_deaths_named_and_no_rank_left(tmp_path: Path) -> None:
    result, calls, said = healed_run(tmp_path, 5, "supervision.restarts=1")
    assert result is None
    assert [names[-1] for names in calls] == ["kill", "kill"]
    assert "supervision.restarts=1" in said
    assert "rank 1 died" in said
    assert "rank 2 died" in said


@pytest.mark.parametrize(
    ("fault", "stuck", "saves"),
    [
        (OSError("a worker fails"), False, True),
        (OSError("a worker fails"), True, False),
        (StopRequested(), False, True),
        (LearnerDied("rank 0"), False, False),
    ],
)
def test_what_was_learnt_is_saved_before_a_fault_or_a_stop_ends_the_run(
    tmp_path: Path, fault: Exception, stuck: bool, saves: bool
) -> None:
    learner = HealthyLearner()
    learner.is_stuck = stuck

    async def work(run: Run) -> None:
        await run.trainer.save_before_end("rl", fault, lambda: run.trainer.save("rl", 7, {}))

    on_a_run(tmp_path, learner, work)
    assert learner.calls == (["save", "write"] if saves else [])


@pytest.mark.parametrize(("fault", "raised"), [(ValueError("a row"), None), (StopRequested(), OSError)])
def test_a_fault_is_not_hidden_by_that_of_the_save_after_it_but_a_stop_is(
    tmp_path: Path, fault: Exception, raised: type[Exception] | None
) -> None:
    said = io.StringIO()

    async def full() -> None:
        raise OSError("no space")

    async def work(run: Run) -> None:
        with Progress(stream=said) as progress:
            run.progress = progress
            await run.trainer.save_before_end("rl", fault, full)

    if raised is None:
        on_a_run(tmp_path, HealthyLearner(), work)
        assert "rl: its last steps could not be saved: no space" in said.getvalue()
    else:
        with pytest.raises(raised, match="no space"):
            on_a_run(tmp_path, HealthyLearner(), work)


def test_a_checkpoint_is_written_while_the_learner_goes_on_and_waited_for_by_who_reads_it(tmp_path: Path) -> None:
    learner = Learner()
    last = asyncio.Event()

    async def slowly() -> None:
        await last.wait()
        (learner.directory / "model.safetensors").write_bytes(b"weights")

    learner.write = slowly  # type: ignore[method-assign]

    async def work(run: Run) -> None:
        await begun(run, LossConfig())
        await run.trainer.save("rl", 5, {"loop.json": "{}"})
        assert steps(run.folder.checkpoints("rl")) == []
        run.trainer.raise_failed()
        asyncio.get_running_loop().call_later(0.05, last.set)
        assert await run.trainer.wait_for_model("rl") == place(run.folder.checkpoints("rl"), 5)
        await run.trainer.save("rl", 6, {})
        assert steps(run.folder.checkpoints("rl")) == [5]
        await run.trainer.close()
        assert steps(run.folder.checkpoints("rl")) == [5, 6]

    on_a_run(tmp_path, learner, work)


@pytest.mark.parametrize("ends", ["stop", "full disk", "deadline"])
def test_the_loop_goes_on_while_its_groups_are_written(tmp_path: Path, ends: str) -> None:
    """`save` returns after the copy. Until the rename, a kill leaves the old checkpoint, and a stop waits for the new one."""
    begun_writing, may_end = asyncio.Event(), asyncio.Event()

    async def write_groups(directory: Path) -> None:
        begun_writing.set()
        await may_end.wait()
        (directory / "groups.jsonl").write_text("{}")
        if ends == "full disk":
            raise OSError(errno.ENOSPC, "No space left")
        if ends == "deadline":
            raise StuckError("rl: nothing for 1 s; rerun with a longer rl.timeout_s")

    async def work(run: Run) -> None:
        await begun(run, LossConfig())
        checkpoints = run.folder.checkpoints("rl")
        await run.trainer.save("rl", 5, {})
        await run.trainer.wait_written()
        await run.trainer.save("rl", 6, {"loop.json": "{}"}, write=write_groups)
        await begun_writing.wait()
        shutil.copytree(checkpoints, tmp_path / "killed")
        assert latest(tmp_path / "killed") == place(tmp_path / "killed", 5)
        assert run.trainer.reserved_bytes(run.folder.root) == 1000
        asyncio.get_running_loop().call_later(0.05, may_end.set)
        if ends == "stop":
            saved: list[int] = []

            async def save_again() -> None:
                saved.extend(steps(checkpoints))
                await run.trainer.save("rl", 6, {})

            await run.trainer.save_before_end("rl", StopRequested(), save_again)
            assert saved == [5, 6]
            assert (place(checkpoints, 6) / "groups.jsonl").read_text() == "{}"
        else:
            with pytest.raises(OSError if ends == "full disk" else StuckError):
                await run.trainer.wait_written()
            assert latest(checkpoints) == place(checkpoints, 5)

    on_a_run(tmp_path, Learner(), work)
    assert not list((tmp_path / "run").rglob("*.unfinished"))


def test_a_checkpoint_that_could_not_be_written_is_told_at_once_and_raised_at_the_next_step(tmp_path: Path) -> None:
    said = io.StringIO()

    async def work(run: Run) -> None:
        await begun(run, LossConfig())
        with Progress(stream=said) as run.progress:
            run.trainer.learner = Learner(breaks=OSError(errno.ENOSPC, "No space left"))  # type: ignore[assignment]
            for waits in (run.trainer.wait_written, run.trainer.drain, lambda: run.trainer.save("rl", 6, {})):
                await run.trainer.save("rl", 5, {})
                while "was not written" not in said.getvalue():
                    await asyncio.sleep(0.001)
                said.truncate(0)
                if waits == run.trainer.drain:
                    await waits()
                else:
                    with pytest.raises(OSError, match=f"Errno {errno.ENOSPC}"):
                        await waits()
            await run.trainer.save("rl", 5, {})
            while "was not written" not in said.getvalue():
                await asyncio.sleep(0.001)
            with pytest.raises(OSError, match=f"Errno {errno.ENOSPC}"):
                run.trainer.raise_failed()
        assert steps(run.folder.checkpoints("rl")) == []

    on_a_run(tmp_path, Learner(), work)
    assert not list((tmp_path / "run").rglob("*.unfinished"))


@pytest.mark.parametrize(
    ("keep", "best", "kept"),
    [
        (2, "null", [30, 40]),
        (1, "null", [40]),
        (1, "train/kl", [20, 40]),
        (1, "env/math/reward", [10, 40]),
        (1, "no/such", [40]),
    ],
)
def test_the_last_and_the_best_checkpoints_are_kept(tmp_path: Path, keep: int, best: str, kept: list[int]) -> None:
    async def work(run: Run) -> None:
        await begun(run, LossConfig())
        for step in range(1, 41):
            near = 1.0 if step <= 10 else 0.5
            run.metrics.append("rl", step, {"env/math/reward": near, "train/kl": -abs(step - 15.5)})
            if step % 10 == 0:
                await run.trainer.save("rl", step, {})
        await run.trainer.wait_written()
        assert steps(run.folder.checkpoints("rl")) == kept

    on_a_run(tmp_path, Learner(), work, f"checkpoints.keep={keep}", f"checkpoints.best={best}")


def test_what_fails_in_the_closing_of_the_learner_is_told_and_keeps_nothing_from_its_end(tmp_path: Path) -> None:
    said = io.StringIO()
    closed: list[str] = []

    class Unclosable(Trainer):
        async def close(self) -> None:
            raise OSError("the cluster is gone")

    class Closed(HeldEngines):
        async def close(self) -> None:
            closed.append("engines")

    async def work(run: Run) -> None:
        run.trainer, run.engines = Unclosable(run), Closed(run, start_learner=None)
        with Progress(stream=said) as progress:
            run.progress = progress
            await run.close()

    on_a_run(tmp_path, Learner(), work)
    assert closed == ["engines"]
    assert "closing: OSError: the cluster is gone" in said.getvalue()


class Engines:
    """Rollout workers that record the checkpoints they load."""

    def __init__(self) -> None:
        self.read: list[tuple[str, int]] = []

    async def load_checkpoint(self, directory: Path, version: WeightVersion) -> WeightVersion:
        self.read.append((directory.name, version.step))
        return version


def test_running_engines_read_a_model_themselves_and_the_learner_is_not_asked(tmp_path: Path) -> None:
    engines, learner = Engines(), Learner()

    async def work(run: Run) -> int:
        run.engines.pool = engines  # type: ignore[assignment]
        for _ in range(2):
            await run.engines.serve(run.model_dir, who="eval")
        return run.folder.state().version

    assert on_a_run(tmp_path, learner, work) == 1
    assert (engines.read, learner.calls) == ([("model", 1)], [])


def test_engines_whose_pushes_are_undone_read_the_model_again_as_the_version_that_it_had(tmp_path: Path) -> None:
    engines = Engines()

    async def work(run: Run) -> None:
        run.engines.pool = engines  # type: ignore[assignment]
        for _ in range(2):
            await run.engines.serve(run.model_dir, who="rl")
            run.engines.forget_served()

    on_a_run(tmp_path, Learner(), work)
    assert engines.read == [("model", 1), ("model", 1)]


def test_an_engine_that_hangs_in_a_push_is_given_up_before_the_run_is(tmp_path: Path) -> None:
    async def work(run: Run) -> tuple[float, float]:
        engine = run.config.rollout.engine.push_deadline_s(10**9)
        return engine, run.engines.push_limit(10**9).seconds

    engine, whole = on_a_run(tmp_path, Learner(), work)
    assert whole >= 2 * engine  # a failed push is sent again, and a failure takes a while to detect


@pytest.mark.parametrize("committing", [False, True])
def test_a_hung_rank_is_given_up_and_a_checkpoint_that_is_being_committed_is_not(committing: bool) -> None:
    ended: list[str] = []

    async def work() -> None:
        writer, needed = BackgroundWriter(lambda text: None), asyncio.Event()

        async def write() -> None:
            try:
                if committing:
                    writer.keep()
                await needed.wait()
                ended.append("committed")
            except asyncio.CancelledError:
                ended.append("given up")
                raise

        writer.start(write(), what="checkpoint 5")
        if committing:
            asyncio.get_running_loop().call_later(0.2, needed.set)
        await writer.drain(at_most_s=0.01)
        if committing:
            assert ended == ["committed"]
        await asyncio.sleep(0.01)
        writer.start(asyncio.sleep(0), what="checkpoint 6")  # the next write may begin
        await writer.wait_written()

    asyncio.run(work())
    assert ended == ["committed" if committing else "given up"]

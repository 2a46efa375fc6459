"""What the stages ask of a learner that keeps its calls or hangs in one: saved once, never waited for without an end."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_folders import with_checkpoint
from test_orchestrator_reporting_budget_curve import Tracked

from learner.config import OptimConfig
from learner.losses.config import LossConfig
from orchestrator.deadline import StopFlag, StuckError
from orchestrator.pipeline.config import load_config
from orchestrator.pipeline.runner import finish
from orchestrator.pipeline.stage_list import single_instance
from orchestrator.run.checkpoint import DamagedCheckpointError
from orchestrator.run.folder import RunDir, RunState
from orchestrator.run.progress import Progress
from orchestrator.session.run import Run
from orchestrator.stages.stage import all_stages
from rollout.trajectory import WeightVersion

SHORT = ["deadlines.start_s=0.1", "deadlines.files_s=0.1", "deadlines.megabytes_per_s=1000000"]


class Learner:
    """A learner group that hangs in one of its calls, or in none; keeps their names."""

    def __init__(self, hangs_in: str = "") -> None:
        self.hangs_in = hangs_in
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

    async def save(self, directory: Path) -> None:
        await self._called("save")
        (directory / "model.safetensors").write_bytes(b"weights")


async def begun(run: Run, loss: LossConfig) -> int:
    """Begin a stage of ten steps; returns the step that was done last."""
    _, done = await run.trainer.begin("rl", optim=OptimConfig(), loss=loss, steps=10, beside_engines=False)
    return done


def on_a_run(folder: Path, learner: Learner, work: Callable[[Run], Awaitable[Any]], *overrides: str) -> Any:
    """What some work on a run with this learner returns."""
    (folder / "model").mkdir(parents=True, exist_ok=True)
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
            finish(run, stages["init"], 1.0, wanted=0)
            finish(run, stages["sft"], 1.0, wanted=7)
            finish(run, stages["rl"], 1.0, wanted=10)
        return run.folder.state().done

    assert on_a_run(tmp_path, Learner(), work) == {"init": 0, "sft": 7, "rl": 25}
    assert "rl: rl.steps=10 is less than the 25 steps that were trained; they stay" in said.getvalue()
    assert "sft" not in said.getvalue()


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


def test_a_step_that_is_saved_already_is_not_saved_again_and_is_continued_from(tmp_path: Path) -> None:
    async def saved(run: Run) -> None:
        assert await begun(run, LossConfig()) == 0
        for _ in range(2):
            await run.trainer.save("rl", 5, {"loop.json": "{}"})
        assert run.trainer.trained("rl").name == "000005"

    learner = Learner()
    on_a_run(tmp_path, learner, saved)
    assert learner.calls == ["use_threads", "load", "checkpoint_bytes", "save"]
    later = Learner()
    near = LossConfig(kl_coefficient=0.1)
    assert on_a_run(tmp_path, later, lambda run: begun(run, near)) == 5
    assert later.calls == [
        "use_threads",
        "load",
        "restore",
        "load_reference",
    ]  # compared with what the stage began with


@pytest.mark.parametrize("loss", [LossConfig(kl_coefficient=0.1), LossConfig()])
def test_what_a_continued_stage_is_compared_with_is_verified_too(tmp_path: Path, loss: LossConfig) -> None:
    async def saved(run: Run) -> None:
        run.trainer.learner = Learner()  # type: ignore[assignment]
        await run.trainer.save("sft", 3, {})
        await run.trainer.save("rl", 5, {})
        before = run.trainer.trained("sft")
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
    ],
)
def test_a_learner_that_hangs_is_not_waited_for_for_ever_and_the_setting_is_named(
    tmp_path: Path, call: str, setting: str
) -> None:
    async def work(run: Run) -> None:
        await begun(run, LossConfig(kl_coefficient=0.1))
        await run.trainer.save("rl", 5, {})

    with pytest.raises(StuckError, match=f"rl: nothing for 0 s while waiting for .* with a longer {setting}"):
        on_a_run(tmp_path, Learner(call), work, *SHORT)
    assert not list((tmp_path / "run").rglob("*.unfinished"))


class Engines:
    """Rollout workers that keep what they were told to read."""

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
            await run.engines.serving(run.model_dir, who="eval")
        return run.folder.state().version

    assert on_a_run(tmp_path, learner, work) == 1
    assert (engines.read, learner.calls) == ([("model", 1)], [])

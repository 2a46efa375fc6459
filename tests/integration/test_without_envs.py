"""A file of dialogues or preferences is enough for a supervised run: it never needs an environment."""

import asyncio
import io
import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from support import tiny_models
from support.fault_job import rows, runs
from support.json_lines import write_lines
from support.replayed_run import PlainTrainer
from unit.orchestrator.evaluation.test_budget_curve import Tracked

from temper.orchestrator.__main__ import main
from temper.orchestrator.loop.deadline import StopFlag
from temper.orchestrator.loop.mixture import open_mixture
from temper.orchestrator.pipeline.config import Config, load_config, save_config
from temper.orchestrator.pipeline.runner import finish, run_with_restart
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.run import Run

CHATS = [
    {"messages": [{"role": "user", "content": f"Twice {n}?"}, {"role": "assistant", "content": f"It is {2 * n}."}]}
    for n in range(8)
]
PAIRS = [{"prompt": f"Twice {n}?", "chosen": f"It is {2 * n}.", "rejected": "No idea."} for n in range(8)]


@pytest.fixture
def files_alone(tmp_path: Path) -> Path:
    """A configuration of two supervised stages, each on a file, with a tiny model."""
    optim = {"warmup_steps": 0}
    given = {
        "name": "files",
        "runs_dir": str(tmp_path / "runs"),
        "profile": "cpu",
        "model": {"path": str(tiny_models.qwen3(tmp_path / "model"))},
        "stages": ["init", "sft", "dpo", "report"],
        "sft": {"data": str(write_lines(tmp_path / "chats.jsonl", CHATS)), "steps": 2, "batch_size": 2, "optim": optim},
        "dpo": {"data": str(write_lines(tmp_path / "pairs.jsonl", PAIRS)), "steps": 2, "batch_size": 2, "optim": optim},
    }
    path = tmp_path / "files.yaml"
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ("[init, rl]", "rl "),
        ("[init, sft, eval]", "eval-sft "),
        ("[init, rft]", "rft "),
        ("[init, distill]", "distill "),
        ("[init, {sft: {name: more, data: null}}]", "sft.data"),
        ("[init, {dpo: {name: taste, data: null}}]", "dpo.data"),
    ],
)
def test_a_stage_that_takes_tasks_is_named_where_there_are_no_environments(
    stages: str, said: str, files_alone: Path
) -> None:
    overrides = [f"stages={stages}", "distill.teacher.path=/tmp"]
    with pytest.raises(ValueError, match=f"envs .*{re.escape(said)}"):
        load_config(files_alone, overrides)


def test_a_share_of_no_environment_is_refused(files_alone: Path) -> None:
    with pytest.raises(ValueError, match=re.escape("sft.shares.math")):
        load_config(files_alone, ["sft.shares.math=1"])


def test_all_that_looks_at_a_run_before_it_takes_one_without_environments(
    files_alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(files_alone)
    assert main(["config", file, "--resolved"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["envs"] == {}
    assert main(["run", file, "--dry-run"]) == 0
    assert "  sft     begins: 2 steps\n  dpo     begins: 2 steps\n" in capsys.readouterr().out
    assert main(["doctor", "--plan", file, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["engine"], planned["time"]) == (None, None)
    assert planned["rank"]["weights"] > 0
    assert main(["doctor", file, "--json"]) == 0
    found = {one["where"]: one["level"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert (found["configuration"], found["stages"]) == ("ok", "ok")
    with pytest.raises(ValueError, match="envs"):
        open_mixture({}, {}, split="train", seed=1)


async def stages_of(run: Run, config: Config) -> None:
    """Run the stages of a run in order, with its rank in this process."""
    run.trainer = PlainTrainer(run)
    try:
        for one in config.instances:
            state = run.folder.state()
            run.folder.store(replace(state, began=state.began | {one.name: str(state.model)}))
            model = await run_with_restart(run, one, config)
            if model is not None:
                run.folder.store(replace(run.folder.state(), model=str(model), label=one.name))
            finish(run, one, wanted=2 if one.stage.trains else 0)
    finally:
        await run.trainer.close()


def require_two_steps(run: Path, begun: Path) -> None:
    """Two steps of both stages are recorded, their figures are finite, and each stage has changed the weights."""
    models = [begun]
    for stage in ("sft", "dpo"):
        steps = rows(run, stage)
        assert [row.step for row in steps] == [1, 2]
        assert all(math.isfinite(row.values["train/loss"]) for row in steps)
        models.append(run / "checkpoints" / stage / "000002")
    weights = [load_file(model / "model.safetensors") for model in models]
    for before, after in pairwise(weights):
        assert before.keys() == after.keys()
        assert any(not torch.equal(before[name], tensor) for name, tensor in after.items())
    assert (run / "report.html").is_file()


def test_two_steps_of_each_stage_are_taken_on_files_alone(files_alone: Path) -> None:
    config, folder = load_config(files_alone, []), RunDir(files_alone.parent / "plain")
    folder.open()
    save_config(config, folder.config)
    try:
        with Progress(stream=io.StringIO()) as progress:
            run = Run(config, folder=folder, tracker=Tracked(), progress=progress, stop=StopFlag(), will_train=True)
            asyncio.run(stages_of(run, config))
    finally:
        folder.close()
    require_two_steps(folder.root, files_alone.parent / "model")


@pytest.mark.slow
def test_two_steps_of_each_are_taken_and_told_of(files_alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with runs(files_alone) as found:
        job = found.start("files")
        assert job.end() == 0, job.output
        run = job.run
        require_two_steps(run, files_alone.parent / "model")
        told = json.loads((run / "report.json").read_text(encoding="utf-8"))
        assert [one["name"] for one in told["stages"]] == ["init", "sft", "dpo"]
        for command in (
            ["status", str(run)],
            ["doctor", "--plan", str(files_alone)],
        ):
            assert main(command) == 0, capsys.readouterr()
        assert main(["eval", str(run)]) == 2
        assert "--preset" in capsys.readouterr().err

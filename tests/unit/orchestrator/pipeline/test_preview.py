"""`--dry-run` prints the plan of a command and changes nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny_models
from support.run_folders import with_checkpoint

from temper.orchestrator.__main__ import main
from temper.orchestrator.cluster.ray_cluster import ray
from temper.orchestrator.pipeline.config import load_config, read_run_settings
from temper.orchestrator.pipeline.continuation import check_continuation
from temper.orchestrator.pipeline.preview import lines, preview, preview_of
from temper.orchestrator.run.folder import RunDir

DEMO = Path("configs/demo.yaml")


def test_a_new_run_is_told_of_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["run", str(DEMO), f"runs_dir={tmp_path}/runs", "name=new", "rl.steps=7", "--dry-run"]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert f"{tmp_path}/runs/new: a new run\n" in said
    assert "\nprofile cpu" in said
    assert "  init       begins\n  eval-init  begins\n  sft        begins: 540 steps\n" in said
    assert "  rl         begins: 7 steps\n" in said
    assert "processes: 1 rank(s), 1 engine(s)\n" in said
    assert said.endswith("\nnothing was started, written or downloaded (--dry-run)\n")
    assert main([*given[:-1], "--json"]) == 2
    assert "--dry-run" in capsys.readouterr().err
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["stages"]] == [
        "init",
        "eval-init",
        "sft",
        "eval-sft",
        "rl",
        "eval-rl",
        "report",
    ]
    assert not (tmp_path / "runs").exists()
    assert not ray.is_initialized()


def test_a_run_that_goes_on_is_told_with_what_is_done_and_what_changed(tmp_path: Path) -> None:
    given = [f"runs_dir={tmp_path}", "name=old", "stages=[init,sft,rl,report]", "sft.steps=3", "rl.steps=9"]
    folder = RunDir(tmp_path / "old")
    folder.open()
    check_continuation(load_config(DEMO, given), folder)
    folder.store(replace(folder.state(), done={"init": 0}, model="checkpoints/init/000000"))
    with_checkpoint(folder, "sft", 3, done=True)
    with_checkpoint(folder, "rl", 4)
    tiny_models.nemotron_h(folder.root / "checkpoints" / "sft" / "000003")
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.root.rglob("*"))
    found = preview(load_config(DEMO, [*given, "rl.optim.learning_rate=1e-6"]))
    assert lines(found)[-5:] == [
        "  init    is done",
        "  sft     is done after step 3",
        "  rl      resumes after step 4 of 9",
        "  report  begins",
        "processes: 1 rank(s), 1 engine(s)",
    ]
    assert list(found.changed) == ["rl.optim.learning_rate"]
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.root.rglob("*")) == before
    with pytest.raises(ValueError, match="seed: 1 -> 2"):
        preview(load_config(DEMO, [*given, "seed=2"]))


def test_no_cluster_is_joined_and_what_it_would_decide_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    found = preview_of(read_run_settings(DEMO, [f"runs_dir={tmp_path}"]))
    assert "RAY_ADDRESS" in found.unknown[0]
    assert (found.ranks, found.engines, found.gpus_each) == (None, None, None)
    assert not any(line.startswith(("profile", "processes")) for line in lines(found))


def test_warnings_of_settings_are_told_and_the_checks_that_are_left(tmp_path: Path) -> None:
    given = [
        f"runs_dir={tmp_path}/runs",
        "supervision.stalled_s=180",
        "rl.timeout_s=120",
        "rl.shaping.accuracy_margin=0.1",
    ]
    found = preview_of(read_run_settings(DEMO, given))
    assert all(any(note.startswith(name) for note in found.notes) for name in ("rl.timeout_s", "rl.shaping"))
    assert "temper doctor" in found.unknown[-1]
    assert not (tmp_path / "runs").exists()


def test_an_evaluation_is_told_of_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_models.nemotron_h(tmp_path / "model")
    given = ["eval", str(model), "--env", "math", "--runs-dir", f"{tmp_path}/runs", "--name", "asked", "--dry-run"]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert f"{tmp_path}/runs/asked: a new run\n" in said
    assert "\n  model-model  begins\n" in said
    assert "processes: 1 engine(s)\n" in said
    assert main([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 0
    assert main(["eval", str(DEMO), f"runs_dir={tmp_path}/runs", "--dry-run"]) == 2
    assert "demo" in capsys.readouterr().err
    assert main(["eval", "--url", "http://127.0.0.1:9/v1", "--env", "math", "--dry-run"]) == 2
    assert "--dry-run" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_notes_of_the_plan_are_told(tmp_path: Path) -> None:
    given = [f"runs_dir={tmp_path}", "name=old", "stages=[init,sft]", "sft.steps=3"]
    folder = RunDir(tmp_path / "old")
    folder.open()
    check_continuation(load_config(DEMO, given), folder)
    folder.store(replace(folder.state(), done={"init": 0, "sft": 3}, model="checkpoints/sft/000003", label="sft"))
    with_checkpoint(folder, "sft", 3, done=True)
    (note,) = preview(load_config(DEMO, given), only="sft").notes
    assert "sft.steps" in note

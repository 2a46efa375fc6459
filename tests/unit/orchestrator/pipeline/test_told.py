"""Data that a tracker receives about stages: only stages with metrics, with their own settings and data."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from temper.orchestrator.config.run_config import TrackingConfig
from temper.orchestrator.pipeline.config import Config, load_config
from temper.orchestrator.pipeline.tracking import send_model, send_run
from temper.orchestrator.run.folder import RunDir, RunState, write_json
from temper.orchestrator.tracking.backend import DataSet
from temper.orchestrator.tracking.tracker import Tracker


class Told(Tracker):
    def __init__(self) -> None:
        super().__init__()
        self.stages: dict[str, tuple[dict[str, str], float | None, list[DataSet]]] = {}
        self.models: list[tuple[Path, dict[str, str]]] = []
        self.files: list[str] = []
        self.notes: list[str] = []

    def stage(self, name: str, params: dict[str, str], seconds: float | None = None, *, data: Any = ()) -> None:
        self.stages[name] = (params, seconds, list(data))

    def describe(self, note: str) -> None:
        self.notes.append(note)

    def model(self, path: Path, facts: dict[str, str]) -> None:
        self.models.append((path, facts))

    def artifact(self, path: Path) -> None:
        self.files.append(path.name)

    def episodes(self, path: Path) -> None:
        self.files.append(path.name)


def told(folder: RunDir, config: Config, state: RunState) -> Told:
    folder.store(state)
    tracker = Told()
    send_run(tracker, config, folder, notify=tracker.notes.append)
    send_model(tracker, folder)
    return tracker


def test_a_process_that_goes_on_tells_what_the_ones_before_may_not_have_sent(tmp_path: Path, folder: RunDir) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"question": "1+1", "answer": "#### 2"}\n')
    config = load_config(Path("configs/demo.yaml"), [f"envs.math={{share: 1, data: {data}, format: gsm8k}}"])
    done = {"init": 0, "eval-init": 0, "sft": 540}
    state = RunState(done=done, seconds={"sft": 9.5}, model="checkpoints/sft/000540", label="sft", version=3)
    assert told(folder, config, RunState()).models == []
    write_json(folder.evals / "init.json", {"label": "init", "order": 0, "k": 1, "seconds": 1.0, "envs": {}})
    (folder.trajectories / "eval-init.jsonl").write_text("")
    tracker = told(folder, config, state)
    assert list(tracker.stages) == ["eval-init", "sft"]  # `init` has no metrics, and `rl` has not begun
    params, seconds, read = tracker.stages["sft"]
    assert (params["sft.steps"], seconds) == ("540", 9.5)
    assert all(name.startswith("sft.") for name in params)
    assert {one.name: (one.kind, one.context) for one in read} == {
        "math": ("file", "train"),
        "code": ("generated", "train"),
        "tool_use": ("generated", "train"),
    }
    heldout = {one.name: one for one in tracker.stages["eval-init"][2]}
    assert heldout["math"].source == str(data)
    assert {one.context for one in heldout.values()} == {"eval"}
    assert not {one.digest for one in heldout.values()} & {one.digest for one in read}
    assert all(len(one.digest) <= 36 for one in read)
    assert tracker.models == [(folder.root / "checkpoints/sft/000540", {"stage": "sft", "weights": "3"})]
    assert tracker.files == ["init.json", "eval-init.jsonl"]


def test_a_stage_tells_the_rows_of_its_own_or_the_environments_that_have_a_share_in_it(folder: RunDir) -> None:
    secret = "https://user:s3cret@host/rows.jsonl?token=abc"
    config = load_config(
        Path("configs/demo.yaml"),
        [
            f"sft.data={secret}",
            "rl.shares={code: 0}",
            "envs.math.share=0",
            "stages=[init, {eval: {name: exam}}, sft, rl, eval]",
        ],
    )
    done = {"init": 0, "exam": 0, "sft": 5, "rl": 5, "eval-rl": 0}
    tracker = told(folder, config, RunState(done=done))
    read = {name: data for name, (_, _, data) in tracker.stages.items()}
    assert list(read) == ["eval-exam", "sft", "rl", "eval-rl"]  # names as in metrics.jsonl
    assert [(one.kind, one.context) for one in read["sft"]] == [("file", "train")]
    assert [one.name for one in read["rl"]] == ["tool_use"]
    assert [one.name for one in read["eval-exam"]] == ["code", "math", "tool_use"]  # evaluations ignore shares
    assert read["sft"][0].source == "https://[blanked]@host/rows.jsonl?token=[blanked]"
    assert not {"s3cret", "abc"} & set(re.findall(r"\w+", str(read)))


def test_a_run_that_can_not_be_described_says_so_and_goes_on(folder: RunDir) -> None:
    (folder.evals / "init.json").parent.mkdir(exist_ok=True)
    (folder.evals / "init.json").write_text('{"label": "in')
    tracker = told(folder, load_config(Path("configs/demo.yaml"), []), RunState(done={"init": 0}))
    (note,) = tracker.notes
    assert note.startswith("tracking: the run's description is not updated (")
    assert "init.json" in note
    assert tracker.files == ["init.json"]  # later files arrive


@pytest.mark.parametrize("name", ["team/math", "a:b", " ", ".."])
def test_a_name_that_mlflow_refuses_for_a_model_is_named_at_the_start(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"tracking.registered_model={name!r}")):
        TrackingConfig(registered_model=name)
    assert [TrackingConfig(registered_model=one).registered_model for one in ("", "team.math")] == ["", "team.math"]


def test_the_files_of_answers_that_are_sent_are_those_that_were_written_last(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    folder.trajectories.mkdir()
    for place, name in enumerate(("eval-sft", "rl-5", "rl-90", "rl-95", "rl-100", "rl.eval-100")):
        file = folder.trajectories / f"{name}.jsonl"
        file.touch()
        os.utime(file, (place, place))
    assert [path.stem for path in folder.newest_trajectories(3)] == ["rl-95", "rl-100", "rl.eval-100"]
    assert RunDir(tmp_path / "none").newest_trajectories(3) == []


def test_files_of_answers_that_went_with_a_report_are_told_again_as_it_is(folder: RunDir) -> None:
    (folder.trajectories / "rl-5.jsonl").write_text("")
    for asked in (False, True):
        config = load_config(Path("configs/demo.yaml"), [f"tracking.trajectories={asked}"])
        for done in ({}, {"report": 0}):
            files = told(folder, config, RunState(done=done)).files
            assert files.count("rl-5.jsonl") == 1 + (asked and bool(done))  # once for its traces

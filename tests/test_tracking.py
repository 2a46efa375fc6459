"""The metrics file and the tracker: a real SQLite store, a server that is away, and one that comes back."""

import json
import math
from pathlib import Path
from time import monotonic, sleep

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.metrics import MetricsLog, read_metrics
from orchestrator.tracking import MlflowTracker


def test_metrics_come_back_as_they_were_written(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append("sft", 1, {"train/loss": 2.5, "train/grad_norm": math.nan})
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert (row.stage, row.step, row.values["train/loss"]) == ("sft", 1, 2.5)
    assert math.isnan(row.values["train/grad_norm"])
    assert set(json.loads((tmp_path / "metrics.jsonl").read_text())) >= {"stage", "step", "time", "train/loss"}


def test_a_resumed_stage_leaves_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for stage, step in (("sft", 1), ("sft", 2), ("sft", 3), ("rl", 5)):
        log.append(stage, step, {"x": 0.0})
    log.truncate("sft", 1)
    log.append("sft", 2, {"x": 1.0})
    assert [(r.stage, r.step, r.values["x"]) for r in read_metrics(path)] == [
        ("sft", 1, 0.0),
        ("rl", 5, 0.0),
        ("sft", 2, 1.0),
    ]


def test_a_step_that_is_measured_again_stands_once_and_an_event_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for start_s in (10.0, 20.0):  # two starts of one run: each opens the file anew
        log = MetricsLog(path)
        log.append("start", 0, {"engine/start_s": start_s})
        log.append("eval-rl", 0, {"math/avg_at_k": start_s})
        log.event("rl", 3, "changed", {"rl.steps": ["5", "9"]})
        log.append("rl", 3, {"x": 1.0})
        log.truncate("rl", 2)
    rows = read_metrics(path)
    assert [(r.stage, r.step) for r in rows if r.event is None] == [("start", 0), ("eval-rl", 0)]
    assert [list(r.values.values()) for r in rows if r.event is None] == [[20.0], [20.0]]
    assert [(r.key, r.values, r.event) for r in rows if r.event] == [
        (("rl", 3), {}, {"kind": "changed", "what": {"rl.steps": ["5", "9"]}})
    ] * 2


def test_a_torn_last_line_is_left_out_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).append("rl", 1, {"x": 1.0})
    with path.open("a") as file:
        file.write('{"stage": "rl", "st')
    assert [row.step for row in read_metrics(path)] == [1]
    MetricsLog(path).append("rl", 2, {"x": 2.0})
    assert [row.step for row in read_metrics(path)] == [1, 2]


def test_a_broken_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"stage": "rl", "step": 1, "time": 0}\n[]\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2"):
        read_metrics(path)


def test_a_metric_can_not_take_the_name_of_a_head_field(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'time'"):
        MetricsLog(tmp_path / "metrics.jsonl").append("rl", 1, {"time": 1.0})


def test_a_run_reaches_a_local_store_and_a_continued_run_sends_each_step_once(tmp_path: Path) -> None:
    artifact = tmp_path / "report.json"
    artifact.write_text("{}")
    first = MlflowTracker("demo", experiment="temper", uri=f"sqlite:///{tmp_path}/mlflow.db", local_dir=tmp_path)
    first.params({f"key{i}": "v" for i in range(120)})
    for step in (1, 2, 3):
        first.metrics({"rl/loss": float(step)}, step)
    first.artifact(artifact)
    first.close(timeout_s=120)
    second = MlflowTracker("demo", experiment="temper", uri=first.uri, run_id=first.run_id, local_dir=tmp_path)
    for step in (3, 4):
        second.metrics({"rl/loss": 10.0 * step}, step)
    second.close(timeout_s=120)

    client = MlflowClient(first.uri)
    assert first.run_id is not None
    assert second.run_id == first.run_id
    history = client.get_metric_history(first.run_id, "rl/loss")
    assert [(m.step, m.value) for m in history] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]
    run = client.get_run(first.run_id)
    assert len(run.data.params) == 120
    assert run.info.status == "FINISHED"
    assert (Path(run.info.artifact_uri.removeprefix("file://")) / "report.json").exists()
    assert (tmp_path / "mlartifacts").is_dir()


def test_a_server_that_is_away_delays_nothing_and_is_reported_once(tmp_path: Path) -> None:
    said: list[str] = []
    tracker = MlflowTracker("demo", experiment="temper", uri="http://127.0.0.1:9", say=said.append)
    began = monotonic()
    for step in range(1000):
        tracker.metrics({"x": 1.0}, step)
    assert monotonic() - began < 1.0
    assert not tracker.reached(0.5)
    tracker.close(timeout_s=20)
    assert monotonic() - began < 25
    assert len(said) == 2
    assert "can't be reached" in said[0]
    assert said[1].startswith("tracking: 1000 entries did not reach http://127.0.0.1:9")


def test_what_was_logged_while_the_server_was_away_is_sent_when_it_is_back(tmp_path: Path) -> None:
    said: list[str] = []
    in_the_way = tmp_path / "store"
    in_the_way.write_text("a file where the store's folder should be")
    tracker = MlflowTracker(
        "demo", experiment="temper", uri=f"sqlite:///{in_the_way}/mlflow.db", local_dir=tmp_path, say=said.append
    )
    for step in (1, 2):
        tracker.metrics({"x": float(step)}, step)
    deadline = monotonic() + 60
    while not said and monotonic() < deadline:
        sleep(0.05)
    in_the_way.unlink()
    assert tracker.reached(120)
    tracker.close(timeout_s=120)
    assert tracker.run_id is not None
    history = MlflowClient(tracker.uri).get_metric_history(tracker.run_id, "x")
    assert [(m.step, m.value) for m in history] == [(1, 1.0), (2, 2.0)]
    assert ["can't be reached" in said[0], "is back" in said[1], len(said)] == [True, True, 2]


def test_a_continued_run_that_the_server_does_not_have_starts_anew(tmp_path: Path) -> None:
    said: list[str] = []
    tracker = MlflowTracker(
        "demo",
        experiment="temper",
        uri=f"sqlite:///{tmp_path}/mlflow.db",
        run_id="0" * 32,
        local_dir=tmp_path,
        say=said.append,
    )
    assert tracker.reached(120)
    tracker.close(timeout_s=120)
    assert tracker.run_id != "0" * 32
    assert "has no run" in said[0]

"""The metrics file has each measurement once, and events next to them."""

import json
import math
from pathlib import Path

import pytest

from temper.orchestrator.run.metrics_log import MetricsLog, read_metrics


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


def test_what_is_measured_again_stands_once_and_an_event_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for start_s in (10.0, 20.0):  # two starts of one run: each opens the file again
        log = MetricsLog(path)
        log.append_next("start", {"engine/start_s": start_s})
        log.append("eval-rl", 0, {"math/avg_at_k": start_s})
        log.event("rl", 3, "changed", {"rl.steps": ["5", "9"]})
        log.append("rl", 3, {"x": 1.0})
        log.truncate("rl", 2)
    rows = read_metrics(path)
    assert [(r.stage, r.step) for r in rows if r.is_measured] == [("start", 0), ("start", 1), ("eval-rl", 0)]
    assert [list(r.values.values()) for r in rows if r.is_measured] == [[10.0], [20.0], [20.0]]
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

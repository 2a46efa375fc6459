"""The event log: round trip, truncation of one stage's rows on resume, and removal of a torn line."""

from dataclasses import asdict
from pathlib import Path

import pytest
from support.event_rows import read_event_log

from temper.orchestrator.loop.ticket_log import Totals
from temper.orchestrator.run.event_log import EventLog, EventRow, copy_event_log


def event_log(tmp_path: Path, stage: str = "rl") -> EventLog:
    return EventLog(tmp_path / "event_log.jsonl", stage, clock=lambda: 100.0)


def events(tmp_path: Path) -> list[tuple[str, str, int | None]]:
    return [(row.stage, row.event, row.ticket) for row in read_event_log(tmp_path / "event_log.jsonl")]


def test_rows_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    written, totals = event_log(tmp_path), Totals(issued=4, trained=1, dropped=1, failed=1, in_flight=1)
    written.add("admitted", {"ticket": 5, "env": "math", "index": 2, "version": 3})
    written.add("step", {"step": 4} | asdict(totals))
    first, step = read_event_log(tmp_path / "event_log.jsonl")
    assert first == EventRow(stage="rl", event="admitted", time=100.0, ticket=5, env="math", index=2, version=3)
    assert (step.totals, totals.is_balanced, written.rows) == (totals, True, 2)


def test_a_cut_forgets_the_last_rows_of_its_own_stage_alone(tmp_path: Path) -> None:
    rl = event_log(tmp_path)
    rl.add("dropped", {"ticket": 0, "why": "zero_advantage"})
    rl.add("dropped", {"ticket": 1, "why": "zero_advantage"})
    other = event_log(tmp_path, "distill")
    other.add("dropped", {"ticket": 9, "why": "zero_advantage"})
    rl = event_log(tmp_path)
    assert (rl.rows, rl.cut(1), rl.rows) == (2, 0, 1)
    rl.add("continued", {"step": 1})
    assert events(tmp_path) == [("rl", "dropped", 0), ("distill", "dropped", 9), ("rl", "continued", None)]
    assert event_log(tmp_path).cut(5) == 3  # three of the first five rows are missing


def test_a_line_that_a_killed_process_left_half_written_disappears_and_any_other_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "event_log.jsonl"
    event_log(tmp_path).add("continued", {"step": 1})
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + '{"stage": "rl", "ev', encoding="utf-8")
    assert len(read_event_log(path)) == 1
    event_log(tmp_path).add("continued", {"step": 2})
    assert [row.step for row in read_event_log(path)] == [1, 2]
    path.write_text(whole + "{}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"event_log.jsonl, line 2"):
        copy_event_log(path, tmp_path / "copy.jsonl", rows={"rl": None})
    path.write_text(whole.replace("continued", "vanished"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 1 .*'vanished'"):
        copy_event_log(path, tmp_path / "copy.jsonl", rows={"rl": None})

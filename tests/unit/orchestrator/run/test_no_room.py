"""Failed writes: files that account for a run stay complete, optional files for people are skipped."""

import asyncio
import errno
import io
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR

import pytest
from integration.test_same_trajectories import TASK, answer
from support.event_rows import read_event_log
from unit.orchestrator.evaluation.test_budget_curve import Tracked

from temper.orchestrator.loop.deadline import StopFlag
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.run.event_log import EventLog
from temper.orchestrator.run.folder import RunDir, write_atomically
from temper.orchestrator.run.metrics_log import MetricsLog, read_metrics
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session.context import RunContext
from temper.rollout.trajectory import Group, Ticket, WeightVersion
from temper.rollout.trajectory_json import write_groups


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Make writes beyond `size` bytes fail and leave a partial file, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def group(number: int) -> Group:
    ticket = Ticket(number=number, task=TASK, admitted=WeightVersion(step=0))
    return Group(ticket=ticket, trajectories=(answer(2), answer(3)))


def test_a_row_of_metrics_stands_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in (1, 2):
        log.append("rl", step, {"x": 1.0})
    size = path.stat().st_size
    with no_file_above(size + 10), pytest.raises(OSError, match=r"metrics\.jsonl"):
        log.append("rl", 3, {"x": 1.0})
    assert path.stat().st_size == size
    with no_file_above(10), pytest.raises(OSError, match=r"metrics\.jsonl"):
        log.truncate("rl", 1)
    assert [row.step for row in read_metrics(path)] == [1, 2]
    log.append("rl", 3, {"x": 2.0})
    assert [row.step for row in read_metrics(path)] == [1, 2, 3]
    assert [one.name for one in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_row_of_the_event_log_stands_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "event_log.jsonl"
    event_log = EventLog(path, "rl")
    event_log.add("finished", {"ticket": 1})
    with no_file_above(path.stat().st_size + 10), pytest.raises(OSError, match=r"event_log\.jsonl"):
        event_log.add("finished", {"ticket": 2})
    event_log.add("finished", {"ticket": 3})
    assert [row.ticket for row in read_event_log(path)] == [1, 3]
    assert event_log.rows == 2


def test_the_file_of_the_event_log_stays_open_until_it_is_cut(tmp_path: Path) -> None:
    path, moved = tmp_path / "event_log.jsonl", tmp_path / "moved.jsonl"
    event_log = EventLog(path, "rl")
    event_log.add("finished", {"ticket": 1})
    path.rename(moved)
    event_log.add("finished", {"ticket": 2})
    event_log.sync()
    assert not path.exists()
    assert [row.ticket for row in read_event_log(moved)] == [1, 2]
    moved.rename(path)
    event_log.cut(1)
    event_log.add("finished", {"ticket": 3})
    assert [row.ticket for row in read_event_log(path)] == [1, 3]


def test_a_file_that_is_replaced_is_on_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, bool]] = []

    def fsync(descriptor: int) -> None:
        synced.append((S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "manifest.json").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(tmp_path / "manifest.json", "{}")
    assert synced == [(False, False), (True, True)]


def test_trajectories_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "rl-10.jsonl"
    write_groups(path, [group(1)])
    with no_file_above(100), pytest.raises(OSError, match=f"Errno {errno.EFBIG}"):
        write_groups(path, [group(2)])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match=f"Errno {errno.ENOSPC}"):
        write_groups(path, [group(1)], leave=2**60)
    assert list(tmp_path.iterdir()) == []
    write_groups(path, [group(1)], leave=1)
    assert len(path.read_text().splitlines()) == 2


def test_trajectories_that_can_not_be_written_are_told_and_the_run_goes_on(tmp_path: Path) -> None:
    folder, screen = RunDir(tmp_path / "run"), io.StringIO()
    folder.open()
    with Progress(stream=screen) as progress:
        run = RunContext(
            load_config(Path("configs/demo.yaml"), []),
            folder=folder,
            tracker=Tracked(),
            progress=progress,
            stop=StopFlag(),
        )
        path = folder.trajectory_file("rl", 10)
        with no_file_above(1000):
            asyncio.run(run.write_trajectories(path, [group(1)], name="rl", step=10))
    folder.close()
    assert not path.exists()
    assert str(path) in screen.getvalue()
    (row,) = read_metrics(folder.metrics)
    assert (row.key, row.event) == (
        ("rl", 10),
        {"kind": "unwritten", "what": {"rl-10.jsonl": "File too large"}},
    )


def test_a_stage_that_goes_on_from_a_step_leaves_nothing_of_what_came_after_it(folder: RunDir) -> None:
    names = ["rl-10.jsonl", "rl-20.jsonl", "rl-30.jsonl", "rl-2-30.jsonl", "rl_tools-30.jsonl", "eval-rl.jsonl"]
    for name in names:
        (folder.trajectories / name).write_text("")
    with Progress(stream=io.StringIO()) as progress:
        run = RunContext(
            load_config(Path("configs/demo.yaml"), []),
            folder=folder,
            tracker=Tracked(),
            progress=progress,
            stop=StopFlag(),
        )
        for step in (20, 21):
            run.metrics.append("rl", step, {"x": 1.0})
        run.metrics.event("rl", 30, "unwritten", {"rl-30.jsonl": "No space left on device"})
        run.truncate_records("rl", 20)
    assert sorted(path.name for path in folder.trajectories.iterdir()) == sorted(set(names) - {"rl-30.jsonl"})
    assert [row.step for row in read_metrics(folder.metrics)] == [20]
    assert list(folder.trajectory_files("rl")) == [10, 20]

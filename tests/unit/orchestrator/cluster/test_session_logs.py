"""What workers printed is copied into the run's folder: bounded, and never a reason to fail."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from temper.orchestrator.cluster import ray_cluster
from temper.orchestrator.cluster.ray_cluster import SessionLogs


def printed(folder: Path, name: str, text: str, *, age_s: float = 0.0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    os.utime(path, (10**9 - age_s, 10**9 - age_s))
    return path


def test_what_workers_of_the_job_printed_is_copied_and_again_as_it_grows(tmp_path: Path) -> None:
    logs, into = tmp_path / "logs", tmp_path / "ray"
    mine = printed(logs, "worker-aa-02000000-11.out", "begun\n")
    printed(logs, "worker-bb-03000000-12.out", "of another job\n")
    printed(logs, "worker-cc-02000000-13.err", "")
    printed(logs, "gcs_server.out", "of Ray itself\n")
    ours = SessionLogs(folder=logs, job="02000000")
    assert ours.keep(into) == ""
    assert [path.name for path in into.iterdir()] == [mine.name]
    mine.write_text("begun\ndied\n", encoding="utf-8")
    assert ours.keep(into) == ""
    assert (into / mine.name).read_text(encoding="utf-8") == "begun\ndied\n"
    assert SessionLogs(folder=logs).keep(into) == ""
    assert len(list(into.iterdir())) == 2


def test_of_long_files_the_end_is_kept_and_of_many_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "FILE_BYTES", 10)
    monkeypatch.setattr(ray_cluster, "FOLDER_BYTES", 250 + 2 * len(str(tmp_path)))
    logs, into = tmp_path / "logs", tmp_path / "ray"
    for number in range(5):
        printed(logs, f"worker-{number}-01-1.out", "x" * 90 + f"the end {number}\n", age_s=number)
    assert SessionLogs(folder=logs).keep(into) == ""
    assert sorted(path.name[7] for path in into.iterdir()) == ["0", "1"]
    text = (into / "worker-0-01-1.out").read_text(encoding="utf-8")
    assert text.endswith("left out\nthe end 0\n")
    assert "the first 90 bytes of" in text


def test_what_can_not_be_copied_is_told_and_time_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = tmp_path / "logs"
    printed(logs, "worker-a-01-1.out", "x")
    assert "No such file or directory" in SessionLogs(folder=logs).keep(tmp_path / "gone" / "ray")
    assert SessionLogs(folder=tmp_path / "never").keep(tmp_path / "ray") == ""
    monkeypatch.setattr(ray_cluster, "COPY_S", -1.0)
    assert "not all of" in SessionLogs(folder=logs).keep(tmp_path / "ray")


def test_a_copy_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, into = tmp_path / "logs", tmp_path / "ray"
    printed(logs, "worker-a-01-1.out", "x")

    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    assert "No space left" in SessionLogs(folder=logs).keep(into)
    assert list(into.iterdir()) == []

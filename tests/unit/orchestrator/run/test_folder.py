"""A run's folder: its state, and one driver at a time."""

from pathlib import Path

import pytest

from temper.orchestrator.run.folder import RunDir


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"of_another_version": 1}'])
def test_a_damaged_state_is_refused_with_its_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=str(tmp_path / "manifest.json")):
        RunDir(tmp_path).state()


def test_a_second_driver_is_a_mistake_and_changes_no_file(tmp_path: Path) -> None:
    first = RunDir(tmp_path / "two")
    first.open()
    before = {path: path.stat().st_mtime_ns for path in first.root.rglob("*")}
    with pytest.raises(ValueError, match=str(first.root)):
        RunDir(first.root).open()
    assert {path: path.stat().st_mtime_ns for path in first.root.rglob("*")} == before
    first.close()
    RunDir(first.root).open()

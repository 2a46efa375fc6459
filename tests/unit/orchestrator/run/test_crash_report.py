"""The report on a driver that ends without one."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys
from pathlib import Path
from temper.orchestrator.run.crash_report import crash_reporter

folder, end = Path(sys.argv[1]), sys.argv[2]
log = folder / "driver.log"
log.write_text("of an earlier start\\n")
with crash_reporter(folder / "faults", log, "temper run mine.yaml"):
    with log.open("a") as file:
        file.write("GCS is gone\\n")
    exec(end)
"""


def ended(folder: Path, end: str) -> tuple[int, str, list[str]]:
    """Return a driver's exit status, its standard error, and the texts of its fault files."""
    command = [sys.executable, "-c", PROGRAM, str(folder), end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, done.stderr, [file.read_text() for file in folder.glob("faults/*.txt")]


@pytest.mark.parametrize(("end", "status"), [("os.kill(os.getpid(), signal.SIGKILL)", -9), ("os._exit(1)", 1)])
def test_a_driver_that_cannot_report_its_end_has_a_report(end: str, status: int, tmp_path: Path) -> None:
    found, said, (fault,) = ended(tmp_path, end)
    assert found == status
    for text in (said, fault):
        assert "GCS is gone" in text
        assert "earlier" not in text
        assert "temper run mine.yaml" in text


def test_a_report_never_replaces_another(tmp_path: Path) -> None:
    (tmp_path / "faults").mkdir()
    earlier = tmp_path / "faults" / "002-driver.txt"
    earlier.write_text("earlier")
    ended(tmp_path, "os._exit(1)")
    assert earlier.read_text() == "earlier"
    assert (tmp_path / "faults" / "003-driver.txt").is_file()


@pytest.mark.parametrize(("end", "status"), [("pass", 0), ("sys.exit(3)", 3)])
def test_a_driver_that_ends_itself_has_no_report(end: str, status: int, tmp_path: Path) -> None:
    assert ended(tmp_path, end) == (status, "", [])

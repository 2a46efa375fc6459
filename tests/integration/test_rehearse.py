"""`requirements/rehearse.py`: a call on a stand-in for a borrowed machine."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements.carry import ROOT, SCRIPT
from requirements.rehearse import FILES, main, rehearse

SEEN = """
test -f pyproject.toml && test ! -e .venv && test -z "$(ls "$HOME")"
python3 -c "import socket; socket.create_connection(('127.0.0.1', 1))" 2>&1 | grep -q refused
python3 -c "import socket; socket.create_connection(('192.0.2.1', 1))" 2>&1 | grep -q unreachable
sleep 600 &
"""
"""Holds in a copy of the checkout with an empty home, and a network of this machine alone. It leaves a process."""


@pytest.fixture
def call() -> Iterator[Path]:
    (ROOT / "runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "runs") as folder:
        (Path(folder) / "call-1").mkdir()
        yield Path(folder) / "call-1"


def test_a_call_finds_the_checkout_and_nothing_else(call: Path, tmp_path: Path) -> None:
    (call / "deepspeed.tar.xz").write_bytes(bytes(2**20))
    (call / SCRIPT).write_text(f"set -e\n{SEEN}")
    (tmp_path / "home").mkdir()
    done = rehearse(call, tmp_path, Path(sys.prefix), tmp_path / "home")
    assert (done.status, done.faults) == (0, []), (tmp_path / "call-1.log").read_text()
    assert 1 < done.mib < 30
    assert done.seconds < 60


def test_a_call_that_fails_or_returns_too_many_files_is_a_fault(call: Path, tmp_path: Path) -> None:
    (call / SCRIPT).write_text(f"for n in $(seq {FILES + 1}); do touch $OUT/$n; done; exit 3")
    (tmp_path / "home").mkdir()
    done = rehearse(call, tmp_path, Path(sys.prefix), tmp_path / "home")
    assert (done.status, len(done.faults)) == (3, 2)


def test_no_calls_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()

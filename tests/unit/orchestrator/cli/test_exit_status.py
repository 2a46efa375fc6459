"""A failed command sets its exit status and prints one line about the error instead of a traceback."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from temper.orchestrator.__main__ import main
from temper.orchestrator.cli.exit_status import exit_status
from temper.orchestrator.loop.deadline import StuckError
from temper.orchestrator.run.checkpoint import DamagedCheckpointError
from temper.rollout.pool.restarts import TooManyRestarts


def raising(error: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ValueError("rl.steps=0 must be at least 1"), 2, "error: rl.steps=0 must be at least 1\n"),
        (FileNotFoundError("no file x"), 2, "error: no file x\n"),
        (
            PermissionError(13, "Permission denied", "x"),
            1,
            "fault: PermissionError: [Errno 13] Permission denied: 'x'\n",
        ),
        (DamagedCheckpointError("rl/3"), 1, "fault: DamagedCheckpointError: rl/3\n"),
        (BrokenPipeError(32, "Broken pipe"), 1, "fault: BrokenPipeError: [Errno 32] Broken pipe\n"),
        (StuckError("nothing for 9 s"), 3, "fault: StuckError: nothing for 9 s\n"),
        (TooManyRestarts("five"), 3, "fault: TooManyRestarts: five\n"),
        (RuntimeError("at https://me:sesame@host/"), 1, "fault: RuntimeError: at https://[blanked]@host/\n"),
        (KeyboardInterrupt(), 130, "interrupted: stopped at once; rerun the command to resume a run\n"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else "",
)
def test_an_end_by_an_error_is_a_status_and_a_line(
    error: BaseException, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(raising(error)) == status
    assert capsys.readouterr().err == said


def test_sigterm_ends_a_command_as_ctrl_c_does(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        signal.raise_signal(signal.SIGTERM)
        return 0

    before = signal.getsignal(signal.SIGTERM)
    assert exit_status(work) == 130
    assert capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_during_an_import_ends_the_process(tmp_path: Path) -> None:
    """Libraries may catch an exception there, so it must not be one.

    Another thread may receive the signal, so the import waits.
    """
    (tmp_path / "slow.py").write_text(
        "import os, signal, time\n"
        "try:\n    os.kill(os.getpid(), signal.SIGTERM)\n    while True:\n        time.sleep(0.01)\n"
        "except BaseException:\n    pass\n"
    )
    program = "from temper.orchestrator.cli.exit_status import exit_status\nexit_status(lambda: __import__('slow').x)"
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 130, ended.stderr
    assert ended.stderr


def test_what_is_a_fault_of_this_program_is_raised_whole() -> None:
    assert exit_status(lambda: 7) == 7
    with pytest.raises(AssertionError):
        exit_status(raising(AssertionError("one too many")))


@pytest.mark.parametrize("command", [["env", "regrade", "FOLDER"], ["env", "new", "mine_too"]])
def test_commands_without_a_run_end_so_too(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir("/sys")  # a read-only folder
    assert main([word.replace("FOLDER", str(tmp_path)) for word in command]) == 1
    assert capsys.readouterr().err.startswith("fault: ")

"""The Python API without engines: errors, interrupts, and the files of a run."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.user_functions import length
from support.viewed_run import write_viewed_run

import temper
from temper.orchestrator.cluster.this_machine import worker_variables

ROWS = [{"question": f"{number}+1?", "answer": str(number + 1)} for number in range(64)]
SERVES = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from temper.orchestrator.api import _execute
_execute(["view", sys.argv[1]])
"""


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"data": []}, "data"),
        ({"reward": length}, "data"),
        ({"data": ROWS, "reward": lambda answer, row: 1.0}, "def"),
        ({"data": ROWS, "envs": {"math": {}, "code": {}}}, "math, code"),
        ({"data": ROWS, "reward_funcs": [length]}, r"envs\.NAME\.reward"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    arguments: dict[str, Any], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=key):
        temper.train(**arguments)


def test_what_a_command_refuses_is_a_value_error_in_a_running_loop_and_a_thread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings reach the command, whose error names the wrong key. Rows and the function are in the run's folder."""

    async def work() -> None:
        with pytest.raises(ValueError, match=r"rl\.stepz"):
            temper.train(data=ROWS, reward=length, name="mine", runs_dir=str(tmp_path), rl={"stepz": 2})
        with pytest.raises(ValueError, match="nowhere"):
            await asyncio.to_thread(temper.evaluate, "nowhere", preset="gsm8k", runs_dir=str(tmp_path))

    asyncio.run(work())
    assert sorted(path.suffix for path in (tmp_path / "mine" / "inputs").iterdir()) == [".jsonl", ".yaml"]


def viewing(run: Path) -> "subprocess.Popen[str]":
    """Start a process that runs a command until an interrupt."""
    command, pipe = [sys.executable, "-c", SERVES, str(run)], subprocess.PIPE
    return subprocess.Popen(command, env=os.environ | worker_variables(), stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_command_ends_with_its_caller(how: signal.Signals, tmp_path: Path) -> None:
    """An interrupt ends the command and then the caller."""
    run = write_viewed_run(tmp_path / "tiny")
    caller = viewing(run.root)
    assert caller.stdout is not None
    assert "http" in caller.stdout.readline()
    (command,) = psutil.Process(caller.pid).children()
    caller.send_signal(how)
    _, errors = caller.communicate(timeout=60)
    assert caller.returncode != 0
    assert ("KeyboardInterrupt" in errors) == (how is signal.SIGINT)
    psutil.wait_procs([command], timeout=60 if how is signal.SIGKILL else 0)
    assert not command.is_running()


def test_a_run_gives_its_metrics_report_and_page(tmp_path: Path) -> None:
    run = temper.TrainedRun(write_viewed_run(tmp_path / "tiny").root)
    folder = Path(run.folder)
    (folder / "metrics.jsonl").write_text(
        '{"stage": "rl", "step": 1, "time": 2.0, "env/math/reward": 0.5}\n'
        '{"stage": "rl", "step": 1, "time": 3.0, "event": {"kind": "stopped", "what": {}}}\n'
    )
    assert run.metrics.to_dict("records") == [{"stage": "rl", "step": 1, "time": 2.0, "env/math/reward": 0.5}]
    assert "tiny" in run._repr_html_()
    with pytest.raises(FileNotFoundError, match="report"):
        _ = run.report
    (folder / "report.html").write_text("<b>68%</b>")
    assert "&lt;b&gt;68%&lt;/b&gt;" in run._repr_html_()
    assert run.view(open_page=False).stat().st_size > 10_000
    with pytest.raises(ValueError, match="nothing"):
        run.view(evaluation="nothing", open_page=False)

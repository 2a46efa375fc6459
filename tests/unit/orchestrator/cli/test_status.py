"""The commands `status` and `scale`, run from another terminal."""

import json
import re
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from temper.orchestrator.__main__ import main
from temper.orchestrator.cli import look_commands
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.orchestrator.session.status import (
    SCALE_FILE,
    EvaluationStatus,
    ProcessStatus,
    RunStatus,
    TicketStatus,
    ask_for_workers,
    read_status,
    take_request,
)
from temper.orchestrator.tools.inspect.status.facts import gather
from temper.orchestrator.tools.inspect.status.terminal import facts_table

WORKER = ProcessStatus(
    name="rollout worker 0",
    state="serving",
    restarts=1,
    tickets=(7,),
    pid=4242,
    host="node-a",
    answered_s=0.4,
    progress=911,
    doing="a pass of the engine",
    quiet_s=3.0,
)
STARTING = ProcessStatus(name="rollout worker 1", state="starting", restarts=0, tickets=())
STATUS = RunStatus(
    pid=1,
    host=socket.gethostname(),
    time=1000.0,
    stage="rl",
    step=3,
    steps=60,
    version=4,
    buffer={"generating": 1, "ready": 1},
    tickets=(
        TicketStatus(number=6, env="math", state="ready", age_s=40.0, worker=None),
        TicketStatus(number=7, env="code", state="generating", age_s=12.5, worker="rollout worker 0"),
    ),
    processes=(WORKER, STARTING),
    failures={"grader": 2},
    faults=1,
    evaluation=EvaluationStatus(name="rl step 2", answered=5, tasks=64, age_s=7.6),
)


def test_a_status_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    STATUS.write(tmp_path)
    assert read_status(tmp_path) == STATUS
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_run_that_goes_on_is_shown_with_its_workers_and_its_oldest_groups_first(tmp_path: Path) -> None:
    console, folder = Console(width=160), RunDir(tmp_path / "job")
    folder.open()
    STATUS.write(folder.root)
    log = MetricsLog(folder.metrics)
    log.append("rl", 3, {"env/math/reward": 0.25, "train/lag_tokens": 0.5, "time/eval_s": 0.0})
    log.event("rl", 3, "alarm", {"rl.bands.entropy": "train/entropy 0.1 is below low=0.2"})
    with console.capture() as shown:
        console.print(facts_table(gather(folder, now=1002.0)))
    folder.close()
    text = shown.get()
    for wanted in (
        "rl 3/60, version 4 (driver 1, 2 s ago)",
        "generating 1, ready 1",
        "grader 2",
        "4242",
        "node-a",
        "faults: 1",
        "env/math/reward 0.25, train/lag_tokens 0.5\n",
        "memory in GiB: driver ",
        "alarm after step 3: rl.bands.entropy: train/entropy 0.1 is below low=0.2",
        "evaluating rl step 2: 5 of 64 tasks in 8 s",
    ):
        assert wanted in text
    assert text.index("#6") < text.index("#7")


def test_the_state_of_a_run_is_shown_as_json_and_whether_it_is_running(
    tmp_path: Path, folder: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    STATUS.write(folder.root)
    for running in (True, False):
        assert main(["status", str(folder.root), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["running"], found["stage"], found["processes"][0]["pid"]) == (running, "rl", 4242)
        folder.close()
    assert main(["status", str(folder.root)]) == 0
    assert "not running" in capsys.readouterr().out
    assert main(["status", str(tmp_path / "none")]) == 2


@pytest.mark.parametrize("text", ["", "{", '{"pid": 1}', "[" * 3000, "\udcff"])
def test_a_damaged_status_is_one_line_with_its_remedy(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The remedy is a command that works: without the file the state is shown."""
    folder = RunDir(tmp_path / "job")
    folder.open()
    folder.close()
    file = folder.root / "status.json"
    file.write_text(text, errors="surrogateescape")
    assert main(["status", str(folder.root)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(file) in line
    file.unlink()
    assert main(["status", str(folder.root)]) == 0


def test_a_watch_is_ended_by_ctrl_c(folder: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    STATUS.write(folder.root)
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores SIGINT
    watching = threading.Thread(target=interrupt_in, args=("_status", threading.get_ident()))
    try:
        watching.start()
        assert main(["status", str(folder.root), "--watch"]) == 0
        watching.join()
    finally:
        signal.signal(signal.SIGINT, ours)
    assert "4242" in capsys.readouterr().out
    folder.close()


def interrupt_in(function: str, thread: int) -> None:
    seen = 0
    while seen < 10:
        time.sleep(0.01)
        seen = seen + 1 if sys._current_frames()[thread].f_code.co_name == function else 0
    signal.raise_signal(signal.SIGINT)


def test_a_request_for_workers_is_taken_once(folder: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    taken: list[int] = []

    def driver() -> None:
        while not taken:
            taken.extend(filter(None, [take_request(folder.root)]))

    thread = threading.Thread(target=driver)
    thread.start()
    assert main(["scale", str(folder.root), "--rollout-workers", "3"]) == 0
    thread.join(20)
    assert (taken, take_request(folder.root)) == ([3], None)
    assert main(["scale", str(folder.root), "--rollout-workers", "0"]) == 2
    folder.close()
    assert main(["scale", str(folder.root), "--rollout-workers", "3"]) == 2
    assert "is not running" in capsys.readouterr().err


def test_a_request_that_nobody_takes_is_withdrawn_and_says_what_the_run_was_at(
    folder: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_commands, "ANSWER_S", 0.3)
    scale = ["scale", str(folder.root), "--rollout-workers", "3"]
    assert main(scale) == 2
    assert "no status" in capsys.readouterr().err
    replace(STATUS, step=60, time=time.time() - 5).write(folder.root)
    assert main(scale) == 2
    assert re.search(r"and was at step 60 of 60 of rl [5-9] s ago", capsys.readouterr().err)
    monkeypatch.setattr(look_commands, "ANSWER_S", 20.0)
    ends = threading.Thread(target=close_when_asked, args=(folder,))
    ends.start()
    assert main(scale) == 2
    assert "ended" in capsys.readouterr().err
    ends.join(20)
    assert take_request(folder.root) is None


def close_when_asked(folder: RunDir) -> None:
    until = time.monotonic() + 20
    while not (folder.root / SCALE_FILE).exists() and time.monotonic() < until:
        time.sleep(0.01)
    folder.close()


def test_a_request_that_comes_while_the_one_before_is_taken_is_not_lost(tmp_path: Path) -> None:
    for _ in range(100):
        asks = threading.Thread(target=lambda: [ask_for_workers(tmp_path, workers) for workers in (1, 2)])
        asks.start()
        taken = [take_request(tmp_path) for _ in range(10)]
        asks.join(20)
        taken.append(take_request(tmp_path))
        assert [workers for workers in taken if workers is not None][-1] == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"rollout_workers": "many"}', '{"rollout_workers": 0}'])
def test_what_is_no_request_is_refused_and_taken_away(tmp_path: Path, text: str) -> None:
    (tmp_path / "scale.json").write_text(text)
    with pytest.raises(ValueError, match="scale.json"):
        take_request(tmp_path)
    assert take_request(tmp_path) is None


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["view"],
        ["debug", "replay"],
        ["scale", "--rollout-workers=2"],
    ],
)
def test_a_folder_that_is_no_run_is_told_with_the_runs_that_are_there(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    for run, said in (("nope", "no runs"), ("other", "no runs"), ("nope", "demo")):
        if said == "demo":
            (tmp_path / "runs" / "demo").mkdir(parents=True)
            (tmp_path / "runs" / "demo" / "config.yaml").touch()
        assert main([*command, run]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert run in line
        assert line.endswith(said)

"""Snapshots of a run's state."""

import json
import math
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from support.viewed_run import HOSTILE, write_viewed_run

from temper.orchestrator.loop.ticket_log import Totals
from temper.orchestrator.run.event_log import EventLog
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.orchestrator.session.status import ProcessStatus, RunStatus
from temper.orchestrator.tools.inspect.status.facts import gather, last_rows
from temper.orchestrator.tools.inspect.status.terminal import facts_table

STATUS = RunStatus(
    pid=os.getpid(),
    host=socket.gethostname(),
    time=1000.0,
    stage="rl",
    step=30,
    steps=60,
    version=30,
    buffer={"ready": 1},
    tickets=(),
    processes=(ProcessStatus(name=HOSTILE, state="serving", restarts=0, tickets=(), doing="a pass"),),
    failures={},
    faults=1,
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    """A running run whose driver is this process."""
    run = write_viewed_run(tmp_path / "tiny")
    run.open()
    STATUS.write(run.root)
    log = MetricsLog(run.metrics)
    for step in range(1, 31):
        log.append("rl", step, {"env/math/reward": step / 100, "train/lag_tokens": 0.5})
    log.event("rl", 30, "alarm", {"rl.bands.kl": HOSTILE})
    run.faults.mkdir()
    (run.faults / "001-rank-0.txt").write_text("rank 0 died\nand more\n", encoding="utf-8")
    yield run
    run.close()


def test_facts_are_those_of_the_folder_at_the_moment(run: RunDir) -> None:
    facts = gather(run, now=1007.0)
    assert (facts.running, facts.status, facts.silent_s) == (True, STATUS, 7.0)
    assert facts.newest == {"env/math/reward": 0.3, "train/lag_tokens": 0.5}
    assert [(one.stage, one.step, one.text) for one in facts.alarms] == [("rl", 30, f"rl.bands.kl: {HOSTILE}")]
    assert facts.found == ("001-rank-0.txt: rank 0 died",)
    whole = len(last_rows(run.metrics))
    with run.metrics.open("a") as file:  # a partially written line
        file.write('{"stage": "rl", "step": 31')
    assert len(last_rows(run.metrics)) == whole == 31
    (driver,) = facts.memory
    assert driver.name == "driver"
    assert 1e7 < driver.bytes < 1e10
    assert len(facts.recorded) == 3
    run.close()
    gone = gather(run, now=1007.0)
    assert (gone.running, gone.memory, gone.seconds_left) == (False, (), None)


@pytest.mark.parametrize(
    ("time_of", "pace"),
    [
        (lambda step: 100.0 * step if step < 20 else 1900.0 + 2.0 * (step - 19), 2.0),
        (lambda step: 10.0 * step + (3 * 86_400.0 if step > 25 else 0.0), 10.0),  # a pause before a resume
    ],
)
def test_the_pace_is_that_of_the_last_steps(run: RunDir, time_of: Callable[[int], float], pace: float) -> None:
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    run.metrics.write_text("".join(json.dumps(row | {"time": time_of(row["step"])}) + "\n" for row in rows))
    facts = gather(run, now=1007.0)
    assert (facts.seconds_a_step, facts.seconds_left) == (pace, 30 * pace)


def test_an_event_is_told_with_its_kind_everywhere(run: RunDir) -> None:
    MetricsLog(run.metrics).event("rl", 30, "scaled", {"rollout workers": [2, 3]})
    (event,) = gather(run, now=1007.0).events
    assert (event.step, event.text) == (30, "scaled: rollout workers: 2 -> 3")
    assert "event after step 30 of rl: scaled: rollout workers: 2 -> 3" in said_in_the_terminal(run)


def test_the_tickets_of_the_last_step_are_summed_up_and_lost_ones_are_told(run: RunDir) -> None:
    assert gather(run, now=1007.0).totals is None
    log = EventLog(run.event_log, "rl")
    log.add("step", {"step": 1, "issued": 3, "trained": 2, "dropped": 0, "failed": 0, "in_flight": 1})
    log.add("admitted", {"ticket": 3, "env": "math", "index": 3, "version": 1})
    assert gather(run, now=1007.0).totals == Totals(issued=3, trained=2, in_flight=1)
    assert "tickets: 3 = 2 trained + 0 dropped + 0 failed + 1 in flight" in said_in_the_terminal(run)
    log.add("step", {"step": 2, "issued": 6, "trained": 4, "dropped": 0, "failed": 0, "in_flight": 1})
    assert "tickets: 6 is not 4 trained" in said_in_the_terminal(run)


def said_in_the_terminal(run: RunDir) -> str:
    console = Console(width=300)
    with console.capture() as shown:
        console.print(facts_table(gather(run, now=1007.0)))
    return shown.get()


def test_a_loss_that_is_not_finite_in_the_last_step_is_told(run: RunDir) -> None:
    log = MetricsLog(run.metrics)
    log.append("rl", 30, {"env/math/reward": 0.3, "train/loss": 0.5})
    log.append("rl", 31, {"train/loss": math.nan})
    data = gather(run, now=1007.0).as_json()
    assert data["newest"] == {"train/loss": None}  # the rewards belong to step 30
    assert "train/loss is not finite" in said_in_the_terminal(run)


def test_a_driver_is_looked_up_on_its_own_machine_alone(run: RunDir) -> None:
    for host in ("elsewhere", None):
        replace(STATUS, host=host).write(run.root)
        assert gather(run, now=1007.0).memory == ()


@pytest.mark.parametrize(
    ("done", "finished"),
    [
        ({"init": 0, "eval-init": 0, "rl_a": 60, "eval-rl_a": 0}, True),
        ({"init": 0, "eval-init": 0, "rl_a": 60}, False),
        ({"init": 0, "eval-init": 0, "rl_b": 60, "eval-rl_b": 0}, False),
    ],
)
def test_a_run_whose_stages_are_all_done_has_finished(run: RunDir, done: dict[str, int], *, finished: bool) -> None:
    run.config.write_text('{"stages": ["init", "eval", {"rl": {"name": "rl_a", "steps": 60}}, "eval"]}')
    run.store(RunState(done=done, stages={name: name.split("-")[0].split("_")[0] for name in done}))
    assert not gather(run, now=1007.0).finished  # a driver is at work
    run.close()
    assert gather(run, now=1007.0).finished == finished
    said = said_in_the_terminal(run)
    assert ("finished" in said) == finished
    assert (f"{STATUS.step}/{STATUS.steps}" in said) != finished  # of a status written before the end
    run.config.unlink()
    assert not gather(run, now=1007.0).finished


def test_what_would_steer_a_terminal_is_shown_as_text(run: RunDir) -> None:
    MetricsLog(run.metrics).event("rl", 30, "alarm", {"rl.bands.kl": "\x1b[2J\x9b2J\rgone"})
    (run.faults / "002-rank-0.txt").write_text("\x1b]0;taken\x07\n", encoding="utf-8")
    replace(STATUS, processes=(replace(STATUS.processes[0], name="\x1b[1m[red]w"),)).write(run.root)
    said = said_in_the_terminal(run)
    assert {"\x1b", "\x9b", "\r", "\x07"}.isdisjoint(said)
    assert r"\x1b[2J\x9b2J\rgone" in said
    assert r"\x1b]0;taken\x07" in said
    assert r"\x1b[1m[red]w" in said


def test_a_run_that_has_ended_shows_the_metrics_of_the_stage_that_trained_last(run: RunDir) -> None:
    MetricsLog(run.metrics).append("eval-rl", 30, {"math/avg_at_k": 0.5})
    replace(STATUS, stage="report").write(run.root)
    assert gather(run, now=1007.0).newest == {}
    run.config.write_text('{"name": "tiny", "stages": ["rl"]}', encoding="utf-8")
    run.store(replace(run.state(), done={"rl": 60}))
    run.close()
    facts = gather(run, now=1007.0)
    assert facts.finished
    assert facts.newest["env/math/reward"] == 0.3


def test_a_run_without_a_status_is_said_to_have_none(tmp_path: Path) -> None:
    facts = gather(RunDir(tmp_path), now=0.0)
    assert (facts.status, facts.running, facts.newest, facts.silent_s) == (None, False, {}, None)

"""The deadline of a comparison holds whatever it waits for, and no process outlives it."""

import asyncio
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support import tiny_models
from unit.orchestrator.tools.debug.parity.test_faults import FACTS, SETUP, Noted, answered

from temper.learner.models.fresh import make_model
from temper.orchestrator.__main__ import main
from temper.orchestrator.tools.debug.parity import search
from temper.orchestrator.tools.debug.parity.answers import Answered
from temper.orchestrator.tools.debug.parity.causes import engine_causes, free_causes
from temper.orchestrator.tools.debug.parity.report import to_json
from temper.orchestrator.tools.debug.parity.setup import Setup
from temper.orchestrator.tools.debug.parity.time_limit import TRACKER, OutOfTime, at_most


def children() -> set[psutil.Process]:
    """The processes below this one that work, which the tracker of shared memory doesn't."""
    found = psutil.Process().children(recursive=True)
    return {one for one in found if one.is_running() and one.status() != "zombie" and TRACKER not in str(one.cmdline())}


def test_a_command_whose_engine_is_still_starting_ends_by_its_deadline_with_no_process_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "model", tiny_models.SMALL, seed=0)
    monkeypatch.chdir(tmp_path)  # where it puts its log
    before, began = children(), time.monotonic()
    settings = ["rollout.engine.max_model_len=512", "rollout.limits.total_tokens=512"]
    assert main(["parity", str(tmp_path / "model"), *settings, "--deadline", "4"]) == 1
    assert time.monotonic() - began < 4 + 20  # where nothing else is at work it is half a second
    said = capsys.readouterr().err
    assert "TimeoutError: engine and trainer were not compared once" in said
    assert "give more with --deadline" in said
    assert not children() - before


def test_what_was_found_by_the_deadline_is_told_with_what_was_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Setup] = []

    def ask(_model: Path, setup: Setup, *_prompts: object, **_how: object) -> Answered:
        asked.append(setup)
        if len(asked) > 2:
            time.sleep(60)
        return answered()

    monkeypatch.setattr(search, "ask", ask)
    found = Noted(tmp_path).diagnose(SETUP, deadline_s=0.5)
    assert found.cut_short
    assert found.seconds < 30
    causes = [*free_causes(SETUP), *engine_causes(SETUP, FACTS, decoding_alone=False)]
    settings = [one.setting for one in found.tried] + [one.setting for one in found.untried]
    assert settings == [one.setting for one in causes]
    assert found.tried[-1].causes[0].side == found.untried[0].side == "engine"
    assert found.starts == 3
    assert to_json(found, SETUP, model="mine")["cut_short"] is True


def test_the_time_limit_ends_a_sleep_an_event_loop_and_a_process_that_is_waited_for() -> None:
    async def wait() -> None:
        await asyncio.sleep(60)

    def process() -> None:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], check=False)

    for work in (lambda: time.sleep(60), lambda: asyncio.run(wait()), process):
        before, began = children(), time.monotonic()
        with pytest.raises(OutOfTime), at_most(0.3):
            work()
        assert time.monotonic() - began < 20
        assert not children() - before


def test_a_block_in_time_leaves_its_processes_and_no_timer() -> None:
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    with at_most(30):
        child.start()
    assert child.is_alive()
    child.kill()
    child.join(10)
    with at_most(0.05):
        pass
    time.sleep(0.1)


def test_a_timer_that_was_set_before_goes_on() -> None:
    def work() -> None:
        with at_most(30):
            pass
        time.sleep(60)

    with pytest.raises(OutOfTime), at_most(0.2):
        work()

"""The progress view, on a clock that the test moves."""

import io
import os

from temper.orchestrator.run.progress import Progress, clock_text


class HandClock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_come_at_most_every_few_seconds_and_for_the_last_step() -> None:
    clock, out = HandClock(), io.StringIO()
    with Progress("demo", stream=out, every_s=10, clock=clock) as progress:
        progress.stage("sft", 25)
        for step in range(1, 26):
            clock.now += 1
            progress.update(step, {"train/loss": 2.0})
    lines = [line for line in out.getvalue().splitlines() if "loss" in line]
    assert [line.split(" | ")[0].split("] ")[1] for line in lines] == ["sft 10/25", "sft 20/25", "sft 25/25"]


def test_a_line_shows_rewards_speed_and_the_time_left() -> None:
    clock, out = HandClock(), io.StringIO()
    with Progress("demo", stream=out, every_s=1, clock=clock) as progress:
        progress.stage("rl", 100)
        for step in (41, 42, 43):  # a resumed stage: only the steps since then count
            clock.now += 2
            progress.update(step, {"env/math/reward": 0.25, "env/code/reward": 0.5, "rollout/tokens_per_s": 4321.0})
    assert "rl 43/100 | code 0.500 math 0.250 | 4,321 tokens/s | 1:54 left" in out.getvalue()


def test_the_last_line_of_a_stage_is_not_printed_twice() -> None:
    clock, out = HandClock(), io.StringIO()
    with Progress("demo", stream=out, every_s=1, clock=clock) as progress:
        progress.stage("sft", 1)
        clock.now += 5
        progress.update(1, {"train/loss": 1.0})
        progress.stage("eval", 0)
    assert out.getvalue().count("sft 1/1") == 1


def test_an_evaluation_shows_accuracies_and_a_stage_that_is_ended_has_its_line_before_what_follows() -> None:
    clock, out = HandClock(), io.StringIO()
    with Progress("demo", stream=out, clock=clock) as progress:
        progress.stage("eval-sft", 0)
        progress.update(0, {"math/avg_at_k": 0.5, "math/pass_at_k": 0.75, "code/avg_at_k": 0.25})
        progress.end_stage()
        progress.note("eval-sft: done in 3 s")
    assert out.getvalue() == "[0:00] eval-sft | code 0.250 math 0.500\n[0:00] eval-sft: done in 3 s\n"


def test_notes_are_printed_as_they_stand() -> None:
    out = io.StringIO()
    with Progress("demo", stream=out) as progress:
        progress.note("wrote [red]runs/demo[/red]")
    assert "wrote [red]runs/demo[/red]" in out.getvalue()


def test_a_run_whose_screen_nobody_reads_any_more_goes_on() -> None:
    end, screen = os.pipe()
    os.close(end)
    with Progress(stream=os.fdopen(screen, "w", buffering=1), every_s=0.0) as progress:
        progress.stage("rl", 2)
        for step in (1, 2):
            progress.update(step, {"train/loss": 0.5})
            progress.note("a line for nobody")
        assert progress.current is not None
        assert progress.current.step == 2


def test_a_terminal_gets_a_live_panel() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    with Progress("demo", stream=out, clock=HandClock()) as progress:
        progress.stage("rl", 4)
        progress.update(2, {"env/math/reward": 0.25})
    assert "demo - rl" in out.getvalue()
    assert "reward 0.250" in out.getvalue()


def test_durations_are_written_as_people_write_them() -> None:
    assert [clock_text(s) for s in (0, 59.6, 61, 3725)] == ["0:00", "1:00", "1:01", "1:02:05"]

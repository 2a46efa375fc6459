"""The progress view and the progress of sampling, on a fake clock."""

import asyncio
import io
import os

import pytest

from temper.orchestrator.run import progress as module
from temper.orchestrator.run.progress import Progress, SamplingCount, clock_text, sampling_shown


class HandClock:
    def __init__(self, now: float = 100.0) -> None:
        self.now = now

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


def test_a_line_has_answers_speed_since_the_last_one_and_time_left() -> None:
    clock, sampled = HandClock(50.0), [1000]
    count = SamplingCount("evaluation of a", asked=40, tokens=lambda: sampled[0], clock=clock)
    clock.now, sampled[0] = 60.0, 3000
    assert count.text() == "evaluation of a: 0 of 40 answers | 200 tokens/s | time left unknown"
    clock.now, sampled[0], count.finished = 80.0, 23000, 10
    assert count.text() == "evaluation of a: 10 of 40 answers | 1,000 tokens/s | 1:30 left"  # 30 s for 10, 30 left
    clock.now, sampled[0] = 90.0, 500  # the count of a failed engine is lost
    assert "| 0 tokens/s |" in count.text()


@pytest.mark.parametrize("steps", [False, True])
def test_while_answers_are_sampled_the_console_is_never_silent_for_more_than_ten_seconds(
    steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of steps count as output."""
    clock, out = HandClock(50.0), io.StringIO()
    monkeypatch.setattr(module, "TICK_S", 0.0)
    progress = Progress("demo", stream=out, clock=clock)
    shown: list[float] = []

    async def scene() -> None:
        count = SamplingCount("rl step 1", asked=8, clock=clock)
        async with sampling_shown(progress, count):
            for second in range(95):
                clock.now += 1
                if steps and second % 25 == 24:
                    progress.update(second, {})
                for _ in range(3):
                    await asyncio.sleep(0)
                shown.extend([clock.now] * (out.getvalue().count("\n") - len(shown)))

    progress.stage("rl", 95)
    asyncio.run(scene())
    assert max(later - earlier for earlier, later in zip([50.0, *shown], [*shown, clock.now], strict=True)) <= 10
    assert len(shown) <= 12
    lines = out.getvalue().count("\n")
    clock.now += 100  # silent after the block
    assert out.getvalue().count("\n") == lines


def test_nothing_is_shown_while_nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = HandClock(50.0), io.StringIO()
    monkeypatch.setattr(module, "TICK_S", 0.0)

    async def scene() -> None:
        progress = Progress("demo", stream=out, clock=clock)
        async with sampling_shown(progress, SamplingCount("rl step 1", asked=8, clock=clock), look=lambda: False):
            for _ in range(30):
                clock.now += 10
                await asyncio.sleep(0)

    asyncio.run(scene())
    assert out.getvalue() == ""


def test_lines_on_sampling_take_no_step_its_line() -> None:
    clock, out = HandClock(50.0), io.StringIO()
    progress = Progress("demo", stream=out, clock=clock)
    progress.stage("rl", 3)
    for step in (1, 2, 3):
        for _ in range(15):
            clock.now += 1
            progress.sampling(lambda: "rl: 1 of 8 answers")
        progress.update(step, {"loss": 0.5})
    assert [f"rl {step}/3" in out.getvalue() for step in (1, 2, 3)] == [True] * 3

"""The progress view and the progress of sampling, on a fake clock."""

import asyncio
import io
import os

import pytest

from temper.orchestrator.run import progress as module
from temper.orchestrator.run.progress import Progress, SamplingCount, sampling_shown


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

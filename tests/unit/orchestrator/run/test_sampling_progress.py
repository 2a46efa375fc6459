"""How far sampling is: its counts and when it shows a line, on a clock that the test moves."""

import asyncio
import io

import pytest

from temper.orchestrator.run import progress as module
from temper.orchestrator.run.progress import Progress, SamplingCount, sampling_shown


class HandClock:
    """Seconds that pass at the test's call."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_line_has_answers_speed_since_the_last_one_and_time_left() -> None:
    clock, sampled = HandClock(), [1000]
    count = SamplingCount("evaluation of a", asked=40, tokens=lambda: sampled[0], clock=clock)
    clock.now, sampled[0] = 60.0, 3000
    assert count.text() == "evaluation of a: 0 of 40 answers | 200 tokens/s | time left not known yet"
    clock.now, sampled[0], count.finished = 80.0, 23000, 10
    assert count.text() == "evaluation of a: 10 of 40 answers | 1,000 tokens/s | 1:30 left"  # 30 s for 10, 30 to come
    clock.now, sampled[0] = 90.0, 500  # an engine that died takes its count along
    assert "| 0 tokens/s |" in count.text()


@pytest.mark.parametrize("steps", [False, True])
def test_while_answers_are_sampled_the_console_is_never_silent_for_more_than_ten_seconds(
    steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of a step counts too."""
    clock, out = HandClock(), io.StringIO()
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
    clock.now += 100  # and nothing after the block
    assert out.getvalue().count("\n") == lines


def test_nothing_is_shown_while_nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = HandClock(), io.StringIO()
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
    clock, out = HandClock(), io.StringIO()
    progress = Progress("demo", stream=out, clock=clock)
    progress.stage("rl", 3)
    for step in (1, 2, 3):
        for _ in range(15):
            clock.now += 1
            progress.sampling(lambda: "rl: 1 of 8 answers")
        progress.update(step, {"loss": 0.5})
    assert [f"rl {step}/3" in out.getvalue() for step in (1, 2, 3)] == [True] * 3

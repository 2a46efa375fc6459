"""The benchmark against TRL uses the same prompts on both sides and compares samples a second."""

import asyncio
from pathlib import Path

import pytest
from bench.beside_trl import ANSWERS, WORKS, figures_of, mixture_of, trl_work
from bench.trl_side import Part, TrlSide, trl_is_there

from temper.envs.task_env import last_user_text
from temper.learner.models.config import FreshModelConfig
from temper.learner.models.fresh import make_model
from temper.orchestrator.loop.mixture import Draw

SHORT, LONG = WORKS
TINY = FreshModelConfig(pattern="M*", hidden_size=32, intermediate_size=32, attention_heads=2, mamba_heads=2)


def part(*, seconds: float, cpu_s: float) -> Part:
    return Part(seconds=seconds, cpu_s=cpu_s, answers=64, tokens=640)


def test_a_ratio_is_samples_a_second_over_those_of_trl_before_and_after() -> None:
    before, after = part(seconds=3.0, cpu_s=6.0), part(seconds=5.0, cpu_s=10.0)
    figures = figures_of(before, after, {1: part(seconds=2.0, cpu_s=3.2)})
    assert figures["trl_samples_per_s"] == pytest.approx(16.0)
    assert figures["lag_1_samples_per_s"] == pytest.approx(32.0)
    assert figures["lag_1_times_trl"] == pytest.approx(2.0)
    assert figures["lag_1_trl_cpu_over_ours"] == pytest.approx(2.5)
    assert figures["trl_answer_tokens"] == figures["lag_1_answer_tokens"] == pytest.approx(10.0)


def test_long_prompts_are_long_and_end_with_the_question() -> None:
    short, long = (mixture_of(work).task(Draw(env="math", index=3)) for work in (SHORT, LONG))
    assert len(last_user_text(short)) < 100
    assert 500 <= len(last_user_text(long)) < 650
    assert last_user_text(long).endswith(last_user_text(short))
    assert long.spec == short.spec


@pytest.mark.slow
@pytest.mark.skipif(not trl_is_there(), reason="TRL is not installed; requirements/dev.txt has it")
def test_trls_process_makes_the_steps_that_it_is_asked_for(tmp_path: Path) -> None:
    make_model(tmp_path / "model", TINY, seed=1)
    work = trl_work(tmp_path / "model", SHORT, mixture_of(SHORT), threads=1, recompute=False).store(
        tmp_path / "work.json"
    )

    async def two_parts() -> list[Part]:
        trl = await TrlSide.start(work)
        try:
            return [await trl.steps(1), await trl.steps(2)]
        finally:
            await trl.close()

    one, two = asyncio.run(two_parts())
    assert (one.answers, two.answers) == (ANSWERS, 2 * ANSWERS)
    assert 0 < two.tokens <= 2 * ANSWERS * 64

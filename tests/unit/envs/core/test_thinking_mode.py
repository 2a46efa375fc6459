"""Thinking modes: shares, budgets, and the same mode for a task in a resumed run."""

import random
from collections import Counter

import pytest
from support.refusals import refuses

from temper.envs.binding import bind_all
from temper.envs.config import EnvConfig
from temper.envs.core.thinking_mode import OFF, UNLIMITED, Mode, Thinking, ThinkingMix, up_to
from temper.orchestrator.loop.mixture import Draw, open_mixture

EVERY = ThinkingMix(budget=0.4, low_effort=0.1, no_thinking=0.2, budgets=[8, 16])


def test_modes_are_drawn_by_share_and_the_rest_is_unlimited() -> None:
    rng = random.Random(1)
    drawn = Counter(EVERY.draw(rng).label for _ in range(4000))
    shares = {label: round(count / 4000, 1) for label, count in drawn.items()}
    assert shares == {"budget-8": 0.2, "budget-16": 0.2, "low_effort": 0.1, "off": 0.2, "unlimited": 0.3}


def test_budgets_of_a_range_are_drawn_log_uniformly() -> None:
    mix, rng = ThinkingMix(budget=1.0, budget_range=[4, 64]), random.Random(1)
    budgets = [mix.draw_budget(rng) for _ in range(2000)]
    assert (min(budgets), max(budgets)) == (4, 64)
    assert 0.45 < sum(budget <= 17 for budget in budgets) / 2000 < 0.55  # sqrt(5 * 65) - 1 = 17.03
    assert ThinkingMix(budget=1.0, budget_range=[0, 0]).draw(rng) == up_to(0)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"budget": 0.7, "no_thinking": 0.4}, "budget"),
        ({"budget": -0.1}, "thinking.budget=-0.1"),
        ({"budgets": [-1]}, "thinking.budgets=-1"),
        ({"budget_range": [9, 3]}, "thinking.budget_range=[9, 3]"),
        ({"budget_range": [1, 2], "budgets": [3]}, "budgets"),
    ],
)
def test_impossible_mixes_are_refused(settings: dict[str, object], key: str) -> None:
    with refuses(key):
        ThinkingMix(**settings)  # type: ignore[arg-type]


def test_a_budget_below_zero_and_one_in_another_mode_are_refused() -> None:
    with refuses("thinking.budget=-3"):
        up_to(-3)
    with refuses("off", 3):
        Thinking(mode=Mode.OFF, budget=3)


def test_a_draw_has_the_same_mode_each_time() -> None:
    envs = bind_all({"math": EnvConfig(), "code": EnvConfig(thinking=False)})
    first, again = (open_mixture(envs, {}, split="train", seed=3, thinking=EVERY) for _ in range(2))
    modes = [first.task(Draw(env="math", index=index)).thinking for index in range(40)]
    assert modes == [again.task(Draw(env="math", index=index)).thinking for index in range(40)]
    assert len(set(modes)) == 5
    assert first.task(Draw(env="code", index=0)).thinking == OFF
    plain = open_mixture(envs, {}, split="train", seed=3)
    assert plain.task(Draw(env="math", index=0)).thinking == UNLIMITED

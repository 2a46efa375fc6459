"""The costs of passes from their seconds, and the plans that follow them."""

from pathlib import Path

import pytest
import torch
from support import tiny_models
from unit.learner.models.test_shared_prompt import loaded

from temper.learner.batches.packing import ON_CPU, PassCosts, SharedPrefix, cheapest_plan
from temper.learner.models.pass_costs import MOST_TOKENS, ROW, costs_from, measure_pass_costs
from temper.learner.models.scorer import Scorer


@pytest.mark.parametrize(("slower", "margin"), [(1.0, 0.9), (2.0, 0.4), (10.0, 0.3), (0.5, 0.9)])
def test_seconds_give_the_constants_of_the_cost_model(slower: float, margin: float) -> None:
    """A pass costs 500 tokens, rounded to 512. Shared prompts are slower than planned by a factor."""

    def seconds(tokens: int, passes: int = 1) -> float:
        return 1e-5 * (tokens + 500 * passes)

    shared_s = slower * seconds(MOST_TOKENS, passes=3)
    found = costs_from(seconds(ROW), seconds(8 * ROW), shared_s * (1 - 1e-9), rows=8)
    assert found == PassCosts(pass_tokens=512, margin=margin)


def test_tokens_without_a_cost_mean_expensive_passes() -> None:
    assert costs_from(1.0, 0.9, 1.0, rows=8).pass_tokens > 1000


def test_expensive_passes_or_a_low_margin_share_no_prompts() -> None:
    lengths, prefixes = [400] * 8, [SharedPrefix(rows=tuple(range(8)), prompt=300)]
    for costs, shares in ((ON_CPU, True), (PassCosts(pass_tokens=2048), False), (PassCosts(margin=0.3), False)):
        (plans,) = cheapest_plan(lengths, prefixes, ranks=1, budget=10**6, costs=costs)
        assert any(item.prompt for plan in plans for item in plan) == shares


def test_a_model_is_measured(tmp_path: Path) -> None:
    model = loaded(tiny_models.nemotron_h, tmp_path)
    found = measure_pass_costs(Scorer(model, model, tokens=4096), device=torch.device("cpu"), budget=2 * ROW)
    assert 1 <= found.pass_tokens <= 8192
    assert 0.3 <= found.margin <= 0.9

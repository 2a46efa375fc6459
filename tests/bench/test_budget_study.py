"""The measures of the budget study on made-up results."""

from pathlib import Path

import numpy as np
import pytest
from bench.budget_study import ArmResult, EnvMeasures, area, differences, reference, simultaneous_band
from support.tiny_models import qwen3

from temper.envs.core.task import Task


def measured(**scores: dict[str, float]) -> EnvMeasures:
    by_budget = {None if name == "free" else int(name[1:]): found for name, found in scores.items()}
    return EnvMeasures(scores=by_budget, tokens=dict.fromkeys(by_budget, 1.0))


def test_an_area_is_a_mean_over_the_logarithm_of_the_budget() -> None:
    assert area({4: 0.0, 16: 1.0}) == 0.5
    assert area({4: 0.0, 8: 1.0, 32: 1.0}) == pytest.approx((0.5 + 2.0) / 3)
    assert measured(b0={"a": 0.0}, b4={"a": 0.2}, b8={"a": 0.4}, free={"a": 1.0}).area() == pytest.approx(0.3)


def test_differences_are_of_the_tasks_that_both_scored() -> None:
    one, other = measured(b4={"a": 1.0, "b": 0.5}), measured(b4={"b": 0.25, "c": 1.0})
    assert differences(one, other, [4]).tolist() == [[0.25]]


def test_a_file_of_results_keeps_every_score(tmp_path: Path) -> None:
    scores = {
        None: {"a": 1.0, "b": 0.5},
        0: {"a": 0.0},
        16: {"b": 1.0, "c": 0.25},
    }  # an answer without a score is missing
    tokens, best = {None: 40.25, 0: 0.0, 16: 14.5}, {0: 0.25, 16: 0.75}
    envs = {
        "tally": EnvMeasures(scores=scores, tokens=tokens, reference=best),
        "chain": EnvMeasures(scores=scores, tokens=tokens),
    }
    result = ArmResult(envs=envs, sampled_tokens=12, commits=["abc"])
    result.write(tmp_path / "results" / "free-1.json")
    assert ArmResult.read(tmp_path / "results" / "free-1.json") == result


def test_a_band_covers_the_true_difference_and_shrinks_with_tasks() -> None:
    rng = np.random.default_rng(1)
    few, many = (
        simultaneous_band([rng.normal(0.1, 0.5, size=(3, tasks)) for _ in range(3)], rng=rng) for tasks in (50, 5000)
    )
    assert (np.abs(few.difference - 0.1) < few.half).all()
    assert (many.half < few.half / 3).all()
    assert (many.low > 0).all()


def test_a_band_holds_at_all_budgets_at_once() -> None:
    rng = np.random.default_rng(1)
    bands = [simultaneous_band([rng.normal(size=(6, 200))], rng=rng) for _ in range(100)]
    assert sum(bool((np.abs(band.difference) < band.half).all()) for band in bands) >= 88


def test_the_reference_counts_the_lines_whose_tokens_fit(tmp_path: Path) -> None:
    model = qwen3(tmp_path / "model")  # a token for each byte
    spec = {"best_lines": ["ab1", "cd2"], "chances": [0.25, 0.5, 1.0]}
    task = Task(messages=({"role": "user", "content": "?"},), spec=spec)
    assert reference([task], [0, 2, 3, 6, 7, 20], model) == {0: 0.25, 2: 0.25, 3: 0.5, 6: 0.5, 7: 1.0, 20: 1.0}

"""The price of thinking tokens: its rise and fall, and its return from the metrics of a run."""

import pytest

from temper.orchestrator.loop.length_price import LengthPrices


def test_a_price_rises_while_the_accuracy_stays_and_falls_below_its_bound() -> None:
    prices = LengthPrices(0.1, rate=2.0)
    for _ in range(3):
        assert prices.add({"env/math/correct": 0.8, "env/math/reward": 0.1, "loss": 1.0}).keys() == {
            "env/math/length_price"
        }
    assert prices.of("math") == pytest.approx(3 * 2.0 * 0.1)
    prices.add({"env/math/correct": 0.0})  # the running mean falls to 0.64, 0.06 below 0.8 - 0.1
    assert prices.of("math") == pytest.approx(0.6 - 2.0 * 0.06)
    for _ in range(20):
        prices.add({"env/math/correct": 0.0})
    assert prices.of("math") == 0.0


def test_environments_have_their_own_prices_and_a_resumed_run_the_same_ones() -> None:
    rows = [{"env/math/correct": 0.5, "env/code/correct": 0.9}, {"env/code/correct": 0.4}, {"env/math/correct": 0.7}]
    through, first, resumed = (LengthPrices(0.05, rate=1.0) for _ in range(3))
    logged = [through.add(row) for row in rows]
    assert set(logged[1]) == {"env/code/length_price"}
    kept = [row | first.add(row) for row in rows[:2]]
    for row in kept:
        resumed.add(row)
    resumed.add(rows[2])
    assert [resumed.of(env) for env in ("math", "code")] == [through.of(env) for env in ("math", "code")]
    assert through.of("math") != through.of("code")


def test_without_a_margin_nothing_has_a_price() -> None:
    prices = LengthPrices(None, rate=1.0)
    assert prices.add({"env/math/correct": 1.0}) == {}
    assert prices.of("math") == 0.0

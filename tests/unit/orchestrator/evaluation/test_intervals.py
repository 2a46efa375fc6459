"""95 % intervals: values from scipy, values by hand, and coverage."""

import math
import random
from typing import Any

import pytest
from scipy import stats

from temper.orchestrator.evaluation.intervals import accuracy_interval, paired_interval, standard_error, t95
from temper.orchestrator.evaluation.paired import TaskScore, compare_tasks
from temper.orchestrator.evaluation.record import EnvResult
from temper.orchestrator.evaluation.scores import result_lines


@pytest.mark.parametrize("freedom", [1, 2, 7, 29, 30, 31, 100, 5000])
def test_students_quantiles_are_those_of_scipy(freedom: int) -> None:
    assert t95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-4)


def all_right(tasks: int) -> dict[str, Any]:
    counts = {"tasks": tasks, "tasks_asked": tasks, "samples": tasks, "complete": tasks, "failures": 0}
    shares = {"avg_at_k": 1.0, "avg_at_k_failures_as_zero": 1.0, "pass_at_k": 1.0, "stderr": 0.0}
    return counts | shares | {"tokens": 9.0, "truncated": 0.0}


def test_an_evaluation_without_errors_is_not_certain() -> None:
    exact = stats.binomtest(8, 8).proportion_ci(method="wilson")
    assert EnvResult(**all_right(8)).interval == pytest.approx((exact.low, exact.high), abs=1e-4)
    envs = {"math": all_right(8) | {"reward": 1.0, "interval_low": exact.low, "interval_high": 1.0}}
    shown = result_lines({"label": "x", "k": 1, "sampling": {"temperature": 1.0}, "envs": envs})
    assert f"{exact.low:.3f} to 1.000" in shown[-1]


def test_few_tasks_have_students_interval() -> None:
    shares = [0.0, 0.5, 0.5, 1.0, 0.25, 0.75, 0.5, 0.5]
    exact = stats.ttest_1samp(shares, 0.5).confidence_interval()
    found = accuracy_interval(0.5, stderr=standard_error(shares), tasks=8, samples=8_000)
    assert found == pytest.approx((exact.low, exact.high), abs=1e-3)


def test_one_task_has_no_standard_error_and_an_interval_all_the_same() -> None:
    assert math.isnan(standard_error([1.0]))
    low, high = accuracy_interval(1.0, stderr=math.nan, tasks=1, samples=4)
    assert low < high == 1.0
    assert all(map(math.isnan, accuracy_interval(math.nan, stderr=math.nan, tasks=3, samples=0)))


def test_the_interval_of_pairs_that_all_agree_by_hand() -> None:
    """Ten tasks plus the two added ones: variance 1 / 10, nine degrees of freedom."""
    half = stats.t.ppf(0.975, 9) * math.sqrt(0.1 / 10)
    assert paired_interval([0.0] * 8) == pytest.approx((-half, half), abs=1e-3)
    same = [TaskScore(key=str(number), content="", right=1, scored=1) for number in range(8)]
    assert compare_tasks(same, same).interval == pytest.approx((-half, half), abs=1e-3)


@pytest.mark.parametrize("tasks", [8, 30])
@pytest.mark.parametrize(("better", "worse"), [(0.02, 0.02), (0.3, 0.1), (0.6, 0.05)])
def test_the_interval_of_pairs_holds_the_true_difference_nineteen_times_in_twenty(
    tasks: int, better: float, worse: float
) -> None:
    rng = random.Random(1)
    held = 0
    for _ in range(2000):
        drawn = rng.choices((1.0, -1.0, 0.0), weights=(better, worse, 1 - better - worse), k=tasks)
        low, high = paired_interval(drawn)
        held += low <= better - worse <= high
    assert held / 2000 > 0.94

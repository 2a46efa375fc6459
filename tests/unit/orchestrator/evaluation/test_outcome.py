"""The last line of a run: changes of accuracies with their intervals, and steps without a signal."""

import re
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest

from temper.orchestrator.evaluation.outcome import describe_outcome, read_outcome
from temper.orchestrator.evaluation.paired import TaskScore, compare_tasks
from temper.orchestrator.evaluation.record import EnvResult, Evaluation, RunRecord
from temper.orchestrator.run.metrics_log import MetricsRow

NUMBER = re.compile(r"[+-]?\d+\.\d+")


def evaluation(label: str, order: int, right: dict[str, list[int]], **changes: Any) -> Evaluation:
    """Return an evaluation of four answers to each task, by the right answers of each task."""
    tasks = {
        env: [TaskScore(key=f"{env}-{n}", content="", right=count, scored=4) for n, count in enumerate(counts)]
        for env, counts in right.items()
    }
    envs = {env: result(sum(counts) / (4 * len(counts)), len(counts)) for env, counts in right.items()}
    plain: dict[str, Any] = {"k": 4, "seconds": 1.0, "model": label, "asked": {"samples": 4}}
    given: dict[str, Any] = {"envs": envs, "tasks": tasks} | plain | changes
    return Evaluation(label=label, order=order, **given)


def result(accuracy: float, tasks: int) -> EnvResult:
    counts = {"tasks": tasks, "tasks_asked": tasks, "samples": 4 * tasks, "failures": 0, "complete": tasks}
    return EnvResult(**counts, avg_at_k=accuracy, avg_at_k_failures_as_zero=accuracy, pass_at_k=1.0, stderr=0.1)


def record(*evaluations: Evaluation, signals: list[dict[str, float]] | None = None, **changes: Any) -> RunRecord:
    rows = [MetricsRow(stage="rl", step=step, time=0.0, values=values) for step, values in enumerate(signals or [], 1)]
    return RunRecord(name="tiny", seed=1, config={}, rows=rows, evaluations=list(evaluations), **changes)


def clauses(text: str) -> list[str]:
    return text.split("; ")


def test_every_change_has_the_paired_figures_of_the_comparison() -> None:
    before = evaluation("init", 0, {"math": [0, 1, 2, 1, 0, 2] * 4, "code": [2, 2]})
    after = evaluation("rl", 1, {"math": [3, 4, 4, 2, 2, 4] * 4, "code": [2, 2]})
    found = compare_tasks(before.tasks["math"], after.tasks["math"])
    (text,) = clauses(describe_outcome(record(before, after)))
    math, code = text.split(", ")
    first, second, difference, margin = map(float, NUMBER.findall(math))
    assert (first, second, difference) == (round(found.first, 2), round(found.second, 2), round(found.difference, 2))
    low, high = found.interval
    assert difference - margin <= low + 0.01
    assert difference + margin >= high - 0.01
    assert difference - margin > 0, "the change is clear, and stays so"
    assert "unchanged" in code
    assert NUMBER.findall(code)[:2] == ["0.50", "+0.00"]


def test_a_change_that_chance_explains_is_not_reported_as_a_gain() -> None:
    first, second = evaluation("init", 0, {"math": [2, 2, 2]}), evaluation("rl", 1, {"math": [2, 3, 2]})
    assert "chance" in describe_outcome(record(first, second))


def test_each_model_is_compared_with_the_newest_other_model_of_its_settings() -> None:
    greedy = {"asked": {"samples": 4, "sampling.temperature": 0.0}}
    outcome = describe_outcome(
        record(
            evaluation("init", 0, {"math": [0, 0]}),
            evaluation("exam", 1, {"math": [1, 1]}, model="init", **greedy),
            evaluation("rl", 2, {"math": [4, 4]}),
            evaluation("exam-2", 3, {"math": [3, 3]}, model="rl", **greedy),
        )
    )
    rl, exam = clauses(outcome)
    assert "from init to rl:" in rl
    assert "from exam to exam-2:" in exam


def test_a_run_with_less_says_what_it_has() -> None:
    one = evaluation("rl", 0, {"math": [2, 3]})
    nothing = describe_outcome(record())
    assert NUMBER.findall(nothing) == []
    assert "0.62" in describe_outcome(record(one))
    unscored = replace(one, envs={"math": result(nan, 0)}, tasks={})
    assert "nan" not in describe_outcome(record(unscored))


def test_evaluations_between_steps_count_if_there_are_no_others() -> None:
    steps = [evaluation("rl step 0", 0, {"math": [0, 0]}), evaluation("rl step 8", 8, {"math": [4, 4]})]
    assert "from rl step 0 to rl step 8: math 0.00 to 1.00" in describe_outcome(record(step_evaluations=steps))


def test_environments_without_common_tasks_are_not_compared() -> None:
    first = evaluation("init", 0, {"math": [1, 1]})
    second = evaluation("rl", 1, {"math": [3, 3], "code": [2, 2]})
    assert "code 0.50" in describe_outcome(record(first, second))


@pytest.mark.parametrize(
    ("signals", "counts"),
    [
        ([{"rollout/nonzero_advantage": 0.0, "train/advantage_abs": 0.0}], ["1", "1"]),
        ([{"rollout/nonzero_advantage": share} for share in (0.0, 0.5, 0.0)], ["2", "3"]),
        ([{"rollout/nonzero_advantage": 0.0, "train/advantage_abs": 0.4}], ["0", "1"]),  # a length penalty teaches
        ([{"train/loss": 1.0}], []),
    ],
)
def test_steps_without_a_signal_are_counted(signals: list[dict[str, float]], counts: list[str]) -> None:
    assert re.findall(r"\d+", describe_outcome(record(signals=signals))) == counts


def test_a_broken_file_does_not_fail_the_end_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: tiny\n")
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "rl.json").write_text("{")
    assert "rl.json" in read_outcome(tmp_path)


def test_a_change_over_a_part_of_the_tasks_says_over_how_many() -> None:
    first, second = evaluation("init", 0, {"math": [1, 1, 4, 4]}), evaluation("rl", 1, {"math": [3, 3]})
    assert "the 2 tasks" in describe_outcome(record(first, second))
    assert "tasks" not in describe_outcome(record(second, replace(second, label="rl-2", model="rl-2")))

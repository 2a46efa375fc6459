"""Paired comparison of two evaluations: values by hand, published values, scipy, and full enumeration."""

import itertools
import json
import math
import random
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from temper.orchestrator.__main__ import main
from temper.orchestrator.evaluation.paired import (
    DIFFERENCES,
    FINEST,
    TaskScore,
    compare_envs,
    compare_tasks,
    sign_flip_p,
    tasks_needed,
)

DARWIN = (49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48)
"""Height differences of cross-fertilised and self-fertilised maize plants, in eighths of an inch (Darwin)."""


def score(key: str, right: int, of: int = 4, *, content: str = "", failed: int = 0) -> TaskScore:
    return TaskScore(key=key, content=content or f"c-{key}", right=right, scored=of, failed=failed)


def drawn(count: int, *, answers: int = 4, seed: int = 0) -> list[Fraction]:
    """Draw `count` task differences, most of them small."""
    rng = random.Random(seed)
    return [Fraction(rng.randint(0, answers) - rng.randint(0, answers), answers) for _ in range(count)]


def enumerated_p(differences: list[Fraction]) -> float:
    none, all_signs = Fraction(0), signs_of(len(differences))
    sums = [sum((s * d for s, d in zip(signs, differences, strict=True)), none) for signs in all_signs]
    return sum(abs(one) >= abs(sum(differences, none)) for one in sums) / len(sums)


def signs_of(count: int) -> list[tuple[int, ...]]:
    return list(itertools.product((1, -1), repeat=count))


def test_the_numbers_of_four_tasks_by_hand() -> None:
    """Differences 1/2, 1/4, 0 and 1/4: 2 * 2 of 16 sign assignments reach so large a sum."""
    first = [score("a", 1), score("b", 2), score("c", 4), score("d", 0)]
    second = [score("a", 3), score("b", 3), score("c", 4), score("d", 1)]
    found = compare_tasks(first, second)
    assert (found.tasks, found.first, found.second, found.difference) == (4, 7 / 16, 11 / 16, 0.25)
    assert found.p == pytest.approx(2 * 2 / 16)
    assert found.deviation == pytest.approx(math.sqrt((0.25**2 + 0.25**2) / 3))
    assert found.needed["0.1"] == math.ceil((1.959964 + 0.841621) ** 2 * (0.125 / 3) / 0.01)
    assert found.left_out == ""


def test_only_tasks_that_both_scored_are_compared_and_the_rest_is_counted() -> None:
    first = [score("a", 4), score("b", 0), score("gone", 1), score("row-1", 2), score("lost", 0, 0, failed=4)]
    second = [score("b", 4), score("a", 4), score("row-1", 2, content="another"), score("lost", 4), score("new", 4)]
    found = compare_tasks(first, second)
    assert (found.tasks, found.difference) == (2, 0.5)
    assert (found.only_first, found.only_second, found.differing, found.unscored) == (1, 1, 1, 1)
    assert list(compare_envs({"math": first, "code": first}, {"math": second})) == ["math"]


def test_evaluations_without_a_task_in_common_say_nothing_and_no_zero() -> None:
    found = compare_tasks([score("a", 4)], [score("b", 4)])
    assert found.tasks == 0
    numbers = (found.first, found.second, found.difference, *found.interval, found.p, found.deviation)
    assert all(math.isnan(value) for value in numbers)
    assert found.needed == {f"{size:g}": None for size in DIFFERENCES}


def test_the_sign_flip_test_gives_the_p_value_that_fisher_counted_for_darwins_plants() -> None:
    """Fisher, The Design of Experiments, section 21: 863 of 32,768 arrangements on either side."""
    assert sign_flip_p([Fraction(one) for one in DARWIN]) == pytest.approx(2 * 863 / 32768, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("answers", [1, 3, 4])
def test_the_sign_flip_test_is_that_of_scipy_and_of_plain_enumeration(seed: int, answers: int) -> None:
    differences = drawn(10, answers=answers, seed=seed)
    theirs = stats.permutation_test(
        (np.array([float(one * answers) for one in differences]), np.zeros(10)),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    assert sign_flip_p(differences) == pytest.approx(theirs.pvalue, abs=1e-12)
    assert sign_flip_p(differences) == pytest.approx(enumerated_p(differences), abs=1e-12)


@pytest.mark.parametrize(("won", "lost"), [(5, 1), (30, 12), (700, 500), (60, 0)])
def test_with_one_answer_a_task_it_is_the_exact_test_of_mcnemar(won: int, lost: int) -> None:
    differences = [Fraction(1)] * won + [Fraction(-1)] * lost + [Fraction(0)] * 40
    expected = stats.binomtest(won, won + lost).pvalue
    assert sign_flip_p(differences) == pytest.approx(expected, rel=1e-6, abs=1e-13)


def test_answers_that_are_missing_here_and_there_leave_the_test_exact_and_fine_grids_are_rounded() -> None:
    assert sign_flip_p([Fraction(0)] * 5) == sign_flip_p([Fraction(1, 2), Fraction(-1, 2)]) == 1.0
    mixed = [Fraction(1, 3), Fraction(-1, 4), Fraction(1, 2), Fraction(2, 3), Fraction(-1, 5), Fraction(1)]
    assert sign_flip_p(mixed) == pytest.approx(enumerated_p(mixed), abs=1e-12)
    fine = [Fraction(1, 7), Fraction(3, 11), Fraction(-2, 13), Fraction(5, 16), Fraction(4, 17)]
    assert math.lcm(*(one.denominator for one in fine)) > FINEST
    assert sign_flip_p(fine) == pytest.approx(enumerated_p(fine), abs=1e-12)


def test_the_sign_flip_test_holds_its_level_where_nothing_differs() -> None:
    rng = random.Random(5)
    values = [
        sign_flip_p([Fraction(rng.choice((-1, 0, 1)) * rng.randint(0, 4), 4) for _ in range(30)]) for _ in range(400)
    ]
    assert sum(value <= 0.05 for value in values) / len(values) == pytest.approx(0.05, abs=0.03)


def test_so_many_tasks_as_are_said_to_be_needed_show_the_difference_four_times_out_of_five() -> None:
    deviation, difference = 0.4, 0.05
    count = tasks_needed(deviation, difference)
    assert count == math.ceil(((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * deviation / difference) ** 2) == 503
    draws = np.random.default_rng(3).normal(difference, deviation, size=(4000, count))
    z = draws.mean(axis=1) / (draws.std(axis=1, ddof=1) / math.sqrt(count))
    assert (np.abs(z) > 1.96).mean() == pytest.approx(0.8, abs=0.02)
    assert tasks_needed(0.0, 0.05) is None
    assert tasks_needed(math.nan, 0.05) is None


def write_evaluation(run: Path, label: str, order: int, scores: dict[str, list[TaskScore]]) -> Path:
    shares = {"avg_at_k": 0.5, "avg_at_k_failures_as_zero": 0.5, "pass_at_k": 1.0, "stderr": 0.05}
    counts = {"tasks": 2, "tasks_asked": 2, "samples": 8, "failures": 0, "complete": 2}
    tasks = {env: [asdict(one) for one in listed] for env, listed in scores.items()}
    envs = dict.fromkeys(scores, counts | shares)
    path = run / "eval" / f"{label}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"label": label, "order": order, "k": 4, "seconds": 1.0, "envs": envs, "tasks": tasks}))
    return path


def test_compare_takes_two_files_or_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [f"row-{number}" for number in range(12)]
    before = write_evaluation(
        tmp_path / "a", "sft", 0, {"math": [score(key, 1) for key in keys], "code": [score("x", 1)]}
    )
    write_evaluation(tmp_path / "a", "rl", 1, {"math": [score(key, 3) for key in keys[:-1]], "code": [score("x", 1)]})
    out = tmp_path / "found.json"
    assert main(["report", "--compare", str(before), str(tmp_path / "a"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    for text in ("0.250", "0.750", "+0.500", "0.0010"):
        assert text in said
    assert "math: 1 only in the first" in said
    found = json.loads(out.read_text())["envs"]
    assert found["math"]["p"] == pytest.approx(2 / 2**11)
    assert (found["code"]["difference"], found["code"]["p"], found["code"]["deviation"]) == (0.0, 1.0, None)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([], "--runs"),
        (["one"], "not 1"),
        (["one", "gone"], "gone"),
        (["one", "notes"], "notes.json"),
        (["one", "other", "--label", "rl"], "--label rl"),
        (["one", "old"], "old.json"),
        (["one", "other"], "other.json: math"),
    ],
)
def test_what_can_not_be_compared_is_refused_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], named: str
) -> None:
    places = {
        "one": write_evaluation(tmp_path, "one", 0, {"math": [score("a", 1)]}),
        "old": write_evaluation(tmp_path, "old", 1, {}),
        "other": write_evaluation(tmp_path, "other", 2, {"math": [score("b", 1)]}),
        "notes": tmp_path / "notes.json",
    }
    places["notes"].write_text("{}")
    assert main(["report", "--compare", *(str(places.get(name, name)) for name in given)]) == 2
    assert named in capsys.readouterr().err


def test_what_two_evaluations_were_asked_differently_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = {"math": [score(f"{n}", 1) for n in range(5)]}
    asked: list[dict[str, Any]] = [
        {"k": 1, "sampling": {"temperature": 0.0}, "asked": {"rollout.limits.turn_tokens": 128, "x": 1}},
        {"k": 4, "sampling": {"temperature": 1.5}, "asked": {"rollout.limits.turn_tokens": 8192}},
    ]
    files = [write_evaluation(tmp_path, name, 0, tasks) for name in ("one", "other")]
    for file, said in zip(files, asked, strict=True):
        file.write_text(json.dumps(json.loads(file.read_text()) | said))
    assert main(["report", "--compare", *map(str, files)]) == 0
    head = capsys.readouterr().out.splitlines()[2]
    told = "samples 1 and 4; sampling.temperature 0.0 and 1.5; rollout.limits.turn_tokens 128 and 8192; only one sets x"
    assert head == f"different settings: {told}"
    assert main(["report", "--compare", str(files[0]), str(files[0])]) == 0
    assert "different settings" not in capsys.readouterr().out

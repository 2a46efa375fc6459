"""`temper report --compare`: comparison of groups of runs, on handwritten run folders."""

import json
from pathlib import Path
from typing import Any

import pytest
from unit.orchestrator.tools.inspect.report.test_report import point as plain_point

from temper.orchestrator.__main__ import main

Points = list[dict[str, Any]]


def scores(right: list[int]) -> list[dict[str, Any]]:
    """Build the scores of tasks 0, 1, ... with four answers each. `right` counts the correct answers of each task."""
    return [{"key": f"{n}", "content": f"{n}", "right": one, "scored": 4, "failed": 0} for n, one in enumerate(right)]


def point(
    mode: str,
    accuracy: float,
    *,
    budget: int | None = None,
    share: float | None = None,
    right: list[int] | None = None,
    formed: float = 1.0,
    answer: float = 4.0,
) -> dict[str, Any]:
    """Build a point of a curve with these values."""
    own = {"accuracy": accuracy, "accuracy_low": accuracy, "well_formed": formed, "share": share}
    answers = {"answer_tokens": 2 * answer, "answer_tokens_turn": answer}
    return plain_point(mode, budget, scores=scores(right or []), **own, **answers)


def curve(half: float, free: float, *, formed: float = 1.0, answer: float = 4.0) -> Points:
    """Build points for budgets 2 and 10 and for no limit. The answers at budget 2 are `answer` tokens long."""
    return [
        point("budget", 0.0, budget=2, formed=0.9, answer=answer),
        point("budget", half, budget=10, formed=formed),
        point("unlimited", free),
    ]


def write_run(folder: Path, seed: int, curves: dict[str, dict[str, Points]]) -> Path:
    """Write a run with these curves by label and environment. A label without a curve has results alone."""
    (folder / "eval").mkdir(parents=True)
    (folder / "config.yaml").write_text(f"name: {folder.name}\nseed: {seed}\n")
    for order, (label, by_env) in enumerate(curves.items()):
        head = {"label": label, "order": order, "k": 4, "seconds": 2.0, "envs": {}}
        (folder / "eval" / f"{label}.json").write_text(json.dumps(head | ({"curve": by_env} if by_env else {})))
    return folder


def compared(tmp_path: Path, *arguments: str) -> Any:
    assert main(["report", "--compare", *arguments, "--out", str(tmp_path / "out" / "page.html")]) == 0
    return json.loads((tmp_path / "out" / "page.json").read_text())


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["report", "--compare", *arguments]) == 2
    return capsys.readouterr().err


def two_groups(tmp_path: Path) -> tuple[str, str]:
    """Write two seeds of `plain` and one of `mixed`."""
    a = write_run(tmp_path / "a", 1, {"rl": {"math": curve(0.4, 0.8, answer=8.0)}})
    b = write_run(tmp_path / "b", 2, {"rl": {"math": curve(0.3, 1.0, formed=0.8)}})
    c = write_run(tmp_path / "c", 1, {"sft": {"math": curve(0.0, 0.1)}, "rl": {"math": curve(0.9, 0.9)}, "later": {}})
    return f"plain={a},{b}", f"mixed={c}"


def test_budgets_in_a_pass_are_not_paired_with_nested_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(name: str, ways: list[bool | None]) -> str:
        points = [one | {"nested": way} for one, way in zip(curve(0.4, 0.8), [*ways, False], strict=True)]
        return f"{name}={write_run(tmp_path / name, 1, {'rl': {'math': points}})}"

    nested, mixed, passes = run("nested", [True, True]), run("mixed", [True, False]), run("passes", [False, False])
    for other in (mixed, passes):
        assert "eval.budgets=[2,10]" in refused(capsys, "--runs", nested, "--runs", other)
    compared(tmp_path, "--runs", nested, "--runs", run("again", [True, True]))
    older = run("older", [None, None])
    for known in (nested, mixed, passes):
        compared(tmp_path, "--runs", known, "--runs", older)
    assert "eval.budgets=[2,10]" in refused(capsys, "--runs", nested, "--runs", older, "--runs", passes)


def test_a_point_without_a_score_is_null(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("accuracy", "accuracy_low", "stderr", "well_formed", "answer_tokens_turn"))
    down = point("budget", 0.0, budget=10) | nothing | {"samples": 0, "failures": 32}
    whole = curve(0.4, 0.8)
    a = write_run(tmp_path / "a", 1, {"rl": {"math": [whole[0], down, whole[2]]}})
    b = write_run(tmp_path / "b", 2, {"rl": {"math": whole}})
    half = compared(tmp_path, "--runs", f"down={a}", "--runs", f"whole={b}")["points"][1]["groups"]
    assert (half["down"]["accuracy"]["mean"], half["down"]["accuracy"]["runs"]) == (None, 0)
    assert (half["down"]["failed"]["mean"], half["whole"]["failed"]["mean"]) == (1.0, 0.0)
    assert half["down"]["tokens"]["mean"] == 20.0  # 12 of thinking, 8 of answer
    assert "NaN" not in (tmp_path / "out" / "page.json").read_text()
    assert "<td>-</td>" in (tmp_path / "out" / "page.html").read_text()


def test_points_are_matched_by_their_budget_and_spread_over_seeds(tmp_path: Path) -> None:
    plain, mixed = two_groups(tmp_path)
    found = compared(tmp_path, "--runs", plain, "--runs", mixed)
    assert [(run["seed"], run["label"]) for run in found["groups"]["plain"]] == [(1, "rl"), (2, "rl")]
    assert found["groups"]["mixed"][0]["label"] == "rl"  # the last evaluation with a curve
    points = found["points"]
    assert [one["point"] for one in points] == ["budget-2", "budget-10", "unlimited"]
    half = points[1]["groups"]
    assert half["plain"]["accuracy"] == pytest.approx(
        {"mean": 0.35, "low": 0.3, "high": 0.4, "std": 0.1 / 2**0.5, "runs": 2}
    )
    assert half["mixed"]["accuracy"] == {"mean": 0.9, "low": 0.9, "high": 0.9, "std": None, "runs": 1}
    assert half["plain"]["well_formed"]["mean"] == pytest.approx(0.9)
    assert points[0]["groups"]["plain"]["answer_tokens_turn"]["mean"] == 6.0
    early = compared(tmp_path, "--runs", mixed, "--label", "sft")
    assert early["points"][2]["groups"]["mixed"]["accuracy"]["mean"] == 0.1
    compared(tmp_path, "--runs", f"<b>{plain}", "--runs", mixed)
    html = (tmp_path / "out" / "page.html").read_text()
    assert html.count("<svg ") == 2
    assert "&lt;b&gt;plain" in html
    assert [there for there in ("<b>plain", "<script") if there in html] == []


def test_a_difference_is_paired_by_task_over_the_runs_of_a_group(tmp_path: Path) -> None:
    """Both runs of `plain` have the tasks 0 and 1: 4 and 1 of 8 are correct. `mixed` has 3 and 1 of 4, and a third task."""
    runs = {"a": [1, 0], "b": [3, 1], "c": [3, 1, 4]}
    for name, right in runs.items():
        points = [point("budget", 0.5, budget=8, right=right), point("unlimited", 0.9)]
        write_run(tmp_path / name, 1, {"rl": {"math": points}})
    plain, mixed = f"plain={tmp_path / 'a'},{tmp_path / 'b'}", f"mixed={tmp_path / 'c'}"
    first, free = compared(tmp_path, "--runs", plain, "--runs", mixed)["points"]
    (found,) = first["against_first"].values()
    assert (found["tasks"], found["only_second"]) == (2, 1)
    assert found["difference"] == pytest.approx(((3 / 4 - 4 / 8) + (1 / 4 - 1 / 8)) / 2)
    assert found["interval"][0] < found["difference"] < found["interval"][1]
    assert (free["against_first"]["mixed"]["tasks"], free["against_first"]["mixed"]["difference"]) == (0, None)
    assert (tmp_path / "out" / "page.html").read_text().count("<svg ") == 2


def test_runs_under_different_budgets_are_refused_with_those_that_both_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of each model's own median thinking length is not the same budget."""
    for name, budget in (("long", 16), ("short", 8)):
        points = [point("budget", 0.5, budget=budget, share=0.5), point("unlimited", 0.9)]
        write_run(tmp_path / name, 1, {"rl": {"math": points}})
    said = refused(capsys, "--runs", f"a={tmp_path / 'long'}", "--runs", f"b={tmp_path / 'short'}")
    assert "eval.budgets=[8,16]" in said
    assert "eval.budgets=[8,16]" in refused(capsys, "--runs", f"a={tmp_path / 'long'},{tmp_path / 'short'}")


def test_an_environment_that_only_one_group_has_is_shown_for_it_alone(tmp_path: Path) -> None:
    twice = [
        *curve(0.1, 0.2),
        point("budget", 0.0, budget=2, share=0.5),
    ]  # a budget requested twice is one point
    both = write_run(tmp_path / "x", 1, {"rl": {"math": curve(0.4, 0.8), "code": twice}})
    math = write_run(tmp_path / "y", 1, {"rl": {"math": curve(0.4, 0.8)}})
    found = compared(tmp_path, "--runs", f"both={both}", "--runs", f"math={math}")
    assert [one["env"] for one in found["points"]] == ["code"] * 3 + ["math"] * 3
    accuracy = {name: by["accuracy"] for name, by in found["points"][0]["groups"].items()}
    assert [accuracy[name]["runs"] for name in ("both", "math")] == [1, 0]
    assert accuracy["math"]["mean"] is None


def test_what_can_not_be_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, mixed = two_groups(tmp_path)
    (tmp_path / "empty").mkdir()
    bare = write_run(tmp_path / "bare", 1, {"rl": {}})
    early = write_run(tmp_path / "early", 3, {"sft": {"math": curve(0.1, 0.2)}})
    free = write_run(tmp_path / "free", 1, {"rl": {"code": [point("budget", 0.5, budget=3), point("unlimited", 1)]}})
    for given, named in (
        (["--runs", "a=runs/none"], "runs/none"),
        (["--runs", f"a={tmp_path / 'empty'}"], "config.yaml"),
        (["--runs", f"a={bare}"], "eval.budgets="),
        (["--runs", plain, "--label", "sft"], "'sft'"),
        (["--runs", "runs/a"], "NAME=RUN[,RUN...]"),
        (["--runs", "a="], "NAME=RUN[,RUN...]"),
        (["--runs", "=runs/a"], "NAME=RUN[,RUN...]"),
        (["--runs", plain, "--runs", plain], "plain="),
        (["--runs", plain, "--out", "page.json"], "page.json"),
        (["--runs", f"{plain},{early}"], "--label"),
        (["--runs", mixed, "--runs", f"free={free}"], "eval.budgets"),
    ):
        assert named in refused(capsys, *given), given

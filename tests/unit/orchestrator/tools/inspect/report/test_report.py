"""The report, on a small handwritten run folder."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from temper.envs.core.thinking_mode import Mode
from temper.orchestrator.evaluation.outcome import read_outcome
from temper.orchestrator.evaluation.record import read_run
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.orchestrator.tools.inspect.report.figures import (
    Dot,
    accuracy_panels,
    pareto_frontier,
    trailing_mean,
)
from temper.orchestrator.tools.inspect.report.overview import accuracy_changes, describe_run
from temper.orchestrator.tools.inspect.report.report import write_report
from temper.orchestrator.tools.inspect.report.transcripts import pick_transcripts, to_transcript
from temper.orchestrator.tools.inspect.status.facts import gather


def row(**changes: Any) -> dict[str, Any]:
    """Build a trajectory line: one turn of three tokens, the last one injected."""
    turn = {
        "text": "2 and 3\n</think>\n\\boxed{5}",
        "reasoning": "2 and 3",
        "answer": "\\boxed{5}",
        "closed": "itself",
        "observation": [],
        "context_ids": [1, 2],
        "sampled_ids": [3, 4, 5],
        "logprobs": [-0.1, -0.2, None],
        "versions": [6, 7, 7],
        "injected": [False, False, True],
    }
    plain = {
        "env": "math",
        "key": "sum-1",
        "thinking": {"mode": "unlimited", "budget": None},
        "messages": [{"role": "user", "content": "2+3?"}],
        "reward": 1.0,
        "parts": {"correct": 1.0},
        "stop": "env",
        "failure": None,
        "seconds": 0.1,
        "turns": [turn],
    }
    return plain | changes


def result(accuracy: float | None, **changes: Any) -> dict[str, Any]:
    """Build an environment's results in the format of an evaluation."""
    shares = {"avg_at_k": accuracy, "avg_at_k_failures_as_zero": accuracy, "pass_at_k": 1.0, "stderr": 0.05}
    return {"tasks": 8, "tasks_asked": 8, "samples": 32, "failures": 0, "complete": 8} | shares | changes


def write_run(folder: Path, trajectories: list[dict[str, Any]]) -> None:
    """Write a run with all stages done and two RL steps."""
    (folder / "eval").mkdir(parents=True)
    (folder / "trajectories").mkdir()
    (folder / "config.yaml").write_text("name: tiny\nseed: 3\n")
    (folder / "manifest.json").write_text(json.dumps({"seconds": {"init": 1.0, "sft": 20.0, "rl": 40.5}}))
    log = MetricsLog(folder / "metrics.jsonl")
    log.append("start", 0, {"engine/start_s": 12.5})
    log.append("sft", 1, {"train/loss": 3.0})
    for step, reward in ((1, 0.25), (2, 0.5)):
        log.append("rl", step, {"env/math/reward": reward, "rollout/tokens_per_s": 900.0, "train/loss": float("nan")})
    for order, (label, accuracy) in enumerate((("init", 0.0), ("sft", 0.5), ("rl", 0.875))):
        evaluation = {"label": label, "order": order, "k": 4, "seconds": 2.0, "envs": {"math": result(accuracy)}}
        (folder / "eval" / f"{label}.json").write_text(json.dumps(evaluation))
    lines = "".join(json.dumps(one) + "\n" for one in trajectories)
    (folder / "trajectories" / "rl-2.jsonl").write_text(lines)


def point(mode: str, budget: int | None = None, **changes: Any) -> dict[str, Any]:
    """Build a point of a curve in the format of an evaluation."""
    lengths = {"thinking_tokens": 12.0, "thinking_tokens_turn": 6.0, "thinking_tokens_median": 5.0, "overshoot": 0.0}
    answers = {"answer_tokens": 8.0, "answer_tokens_turn": 4.0, "overshoot_max": 0, "truncated": 0.0}
    shares = {"accuracy": 0.5, "accuracy_low": 0.5, "stderr": 0.1, "well_formed": 1.0, "closed": {"itself": 1.0}}
    return {"mode": mode, "budget": budget, "tasks": 8, "samples": 32, **lengths, **answers, **shares, **changes}


def add_curves(folder: Path) -> None:
    for label, accuracy in (("sft", 0.25), ("rl", 0.75)):
        path = folder / "eval" / f"{label}.json"
        asked = [point("off"), point("budget", 8, share=0.5, accuracy=accuracy), point("unlimited", accuracy=1.0)]
        path.write_text(json.dumps(json.loads(path.read_text()) | {"curve": {"math": asked, "code": asked[1:]}}))


def test_report_json_holds_stages_evaluations_and_final_metrics(tmp_path: Path) -> None:
    write_run(tmp_path, [row()])
    found = json.loads(write_report(tmp_path).json.read_text())
    assert (found["run"], found["seed"], found["total_seconds"], found["engine_start_s"]) == ("tiny", 3, 61.5, 12.5)
    assert found["stages"][1] == {"name": "sft", "seconds": 20.0}
    assert [table["label"] for table in found["evaluation"]] == ["init", "sft", "rl"]
    assert found["accuracy"] == {"math": {"init": 0.0, "sft": 0.5, "rl": 0.875}}
    assert found["evaluation"][1]["envs"]["math"]["interval"] == pytest.approx(
        [0.3363, 0.6637], abs=1e-4
    )  # Wilson's interval of 16 in 32
    assert found["final_metrics"]["rl"]["env/math/reward"] == 0.5
    assert found["final_metrics"]["rl"]["train/loss"] is None


def test_what_has_no_score_is_null_and_a_dash_and_what_is_missing_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, [row()])
    add_curves(tmp_path)
    path = tmp_path / "eval" / "rl.json"
    nothing = dict.fromkeys(("avg_at_k", "avg_at_k_failures_as_zero", "pass_at_k", "stderr", "tokens", "truncated"))
    down = result(None, samples=0, failures=32, complete=0, stale=7) | nothing
    few = result(0.5, tasks=5, tasks_asked=8, samples=18, failures=2, complete=4, avg_at_k_failures_as_zero=0.45)
    lost = point("off") | dict.fromkeys(("accuracy", "accuracy_low", "stderr"), None) | {"samples": 0, "failures": 32}
    raw = json.loads(path.read_text())
    raw["curve"]["math"][0] = lost
    path.write_text(json.dumps(raw | {"envs": {"math": down, "few": few}}))
    paths = write_report(tmp_path)
    found = json.loads(paths.json.read_text())
    assert (found["accuracy"]["math"]["rl"], found["accuracy"]["few"]["rl"]) == (None, 0.5)
    assert (found["evaluation"][2]["envs"]["math"]["interval"], found["curves"]["rl"]["math"][0]["accuracy"]) == (
        [None, None],
        None,
    )
    html = paths.html.read_text()
    assert "<td><b>-</b></td><td>-</td>" in html
    cells = ("0 of 32</td><td>32", "18 of 20</td><td>2", "5 of 8", "0.450", "1.000 (4)", "<b>stale</b>: 7")
    assert [cell for cell in cells if f"<td>{cell}</td>" not in html] == []
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL)


def test_an_event_stands_in_the_report_and_is_no_measurement(tmp_path: Path) -> None:
    write_run(tmp_path, [row()])
    MetricsLog(tmp_path / "metrics.jsonl").event("rl", 2, "changed", {"rl.steps": ["2", "9"], "<b>": ["1", "2"]})
    paths = write_report(tmp_path)
    found = json.loads(paths.json.read_text())
    assert found["final_metrics"]["rl"]["env/math/reward"] == 0.5
    assert found["events"] == [
        {"stage": "rl", "step": 2, "kind": "changed", "what": {"rl.steps": "2 -> 9", "<b>": "1 -> 2"}}
    ]
    assert "<code>rl.steps</code> 2 -&gt; 9" in paths.html.read_text()


def test_the_page_needs_nothing_but_itself_and_escapes_what_a_model_wrote(tmp_path: Path) -> None:
    write_run(tmp_path, [row(messages=[{"role": "user", "content": "<script>alert(1)</script>"}], key='"><img src=x>')])
    for step in (3, 4):
        MetricsLog(tmp_path / "metrics.jsonl").append("rl", step, {"time/publish_s": 2.0, "time/load_s": 1.0})
    html = write_report(tmp_path).html.read_text()
    assert html.count("<svg ") == 4  # accuracy with rewards, SFT loss, throughput, seconds of a step
    assert not re.search(r"""(src|href)=["'](?!#)(http|//|[a-z]+\.)""", re.sub(r"xlink:href|xmlns\S*", "", html))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert [there for there in ("<script", "<img", "@import") if there in html] == []
    figure = html[html.index("Seconds of a step") :]
    assert [name for name in (">publish<", ">load<") if name not in figure] == []


def test_a_run_that_has_only_begun_gets_a_report_of_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: young\n")
    paths = write_report(tmp_path)
    assert "young" in paths.html.read_text()
    assert json.loads(paths.json.read_text())["evaluation"] == []


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.yaml"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("broken", "why"), [({"envs": None}, "AttributeError"), ({"curve": {"math": [{"mode": "sometimes"}]}}, "sometimes")]
)
def test_a_broken_evaluation_is_named(broken: dict[str, Any], why: str, tmp_path: Path) -> None:
    write_run(tmp_path, [row()])
    path = tmp_path / "eval" / "sft.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | broken))
    with pytest.raises(ValueError, match=rf"sft\.json .*{why}"):
        write_report(tmp_path)


def test_samples_show_every_kind_of_outcome_and_the_right_ones_first(tmp_path: Path) -> None:
    failed = row(key="f", reward=None, failure={"kind": "sandbox", "message": "lost"}, stop="failure")
    wrong = [row(key=key, reward=0.0, parts={"correct": 0.0}) for key in ("w1", "w2")]
    rows = [*wrong, row(key="r1"), failed, row(key="r2")]
    (tmp_path / "rl-1.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows) + '{"torn')
    picked = pick_transcripts(tmp_path, per_env=4)["math"]
    assert [sample.key for sample in picked] == ["r1", "r2", "f", "w1"]
    assert picked[2].failure == "sandbox: lost"


def test_a_sample_counts_tokens_forced_ones_and_versions() -> None:
    sample = to_transcript(row(), source="rl-1")
    assert (sample.tokens, sample.forced, sample.versions) == (3, 1, (6, 7))
    assert [(said.role, said.text) for said in sample.passages] == [
        ("user", "2+3?"),
        ("reasoning", "2 and 3"),
        ("answer", "\\boxed{5}"),
    ]


def test_a_sample_ends_with_its_forced_answers() -> None:
    turn = row()["turns"][0] | {"answer": "4"}
    forced = row(turns=[turn], reward=0.0, thinking={"mode": "budget", "budget": 8})
    *_, last = to_transcript(row(forced_answers=[forced]), source="rl-1").passages
    assert last.text == "4"
    assert {"8", "0.0"} <= set(last.role.replace(",", "").split())


@pytest.mark.parametrize(
    ("reasoning", "answer", "shown"),
    [
        ("so", "", [("reasoning", "so")]),
        (None, "5", [("answer", "5")]),  # a model without thinking tags, or thinking off
        ("a</think>b", " 5", [("reasoning", "a</think>b"), ("answer", " 5")]),
    ],
)
def test_a_turn_is_shown_as_it_was_graded(reasoning: str | None, answer: str, shown: list[tuple[str, str]]) -> None:
    turn = row()["turns"][0] | {"reasoning": reasoning, "answer": answer}
    sample = to_transcript(row(turns=[turn]), source="rl-1")
    assert [(said.role, said.text) for said in sample.passages[1:]] == shown


def test_smoothing_is_a_trailing_mean_that_skips_what_is_not_finite() -> None:
    assert trailing_mean([1.0, float("nan"), 3.0, 5.0], window=2) == [1.0, 1.0, 3.0, 4.0]


def test_curves_stand_in_the_report_in_both_forms_and_as_a_figure_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path, [row()])
    plain = write_report(tmp_path)
    without = json.loads(plain.json.read_text())
    assert plain.pictures == tuple(tmp_path.glob("*.svg")) == (tmp_path / "result.svg",)
    assert "thinking budget" not in plain.html.read_text()
    add_curves(tmp_path)
    paths = write_report(tmp_path)
    found = json.loads(paths.json.read_text())
    curves = found.pop("curves")
    assert found == without
    assert list(curves) == ["sft", "rl"]
    off, limited, free = curves["rl"]["math"]
    assert (off["mode"], limited["budget"], limited["share"], free["budget"]) == ("off", 8, 0.5, None)
    assert limited["accuracy"] == 0.75
    assert "scores" not in limited  # they are long
    assert limited["interval"] == pytest.approx([0.75 - 0.2365, 0.75 + 0.2365])
    html = paths.html.read_text()
    assert html.count("<svg ") == 5
    assert html.count("<td>off</td>") == 2
    assert [path.name for path in paths.pictures] == ["result.svg", "curves.svg"]
    result, curves = (picture.read_text() for picture in paths.pictures)
    assert all(f">{words}</text>" in result for words in ("after sft", "math"))
    assert all(f">{words}</text>" in curves for words in ("after sft", "after rl", "math", "code"))


def test_a_point_is_drawn_at_the_tokens_that_its_answers_spent(tmp_path: Path) -> None:
    write_run(tmp_path, [row()])
    add_curves(tmp_path)
    code, math = accuracy_panels(read_run(tmp_path))
    assert (code.title, math.title) == ("code", "math")
    assert [dot.x for dot in math.lines["after rl"]] == [12.0 + 8.0] * 3  # independent of the budget
    points = read_run(tmp_path).budget_curves["rl"]["math"]
    assert [point.tokens_per_right_answer for point in points] == [20.0 / point.accuracy for point in points]
    assert "tokens/right answer" in write_report(tmp_path).html.read_text()


def test_a_right_answer_costs_its_tokens_at_the_speed_of_the_evaluation(tmp_path: Path) -> None:
    write_run(tmp_path, [row()])
    add_curves(tmp_path)
    assert "<th>seconds/right answer</th>" not in write_report(tmp_path).html.read_text()
    path = tmp_path / "eval" / "rl.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sampled_tokens": 500}))  # in 2 seconds: 250 tokens/s
    html = write_report(tmp_path).html.read_text()
    for cells in ("80.0</td><td>-", "40.0</td><td>0.160", "26.7</td><td>0.107", "20.0</td><td>0.080"):
        assert f"<td>{cells}</td>" in html


def test_the_frontier_leaves_out_points_that_another_one_beats() -> None:
    places = [(40.0, 0.9), (10.0, 0.25), (30.0, 0.5), (20.0, 0.5)]  # 30 tokens buy no more than 20
    dots = [Dot(mode=Mode.BUDGET, x=x, value=value, low=value, high=value) for x, value in places]
    assert [dot.x for dot in pareto_frontier(dots)] == [10.0, 20.0, 40.0]


def test_any_two_evaluations_stand_against_each_other(tmp_path: Path) -> None:
    write_run(tmp_path, [])
    for label, right in (("sft", 1), ("rl", 3)):
        path = tmp_path / "eval" / f"{label}.json"
        tasks = [{"key": f"{n}", "content": f"{n}", "right": right, "scored": 4, "failed": 0} for n in range(10)]
        path.write_text(json.dumps(json.loads(path.read_text()) | {"tasks": {"math": tasks}}))
    paths = write_report(tmp_path)
    (pair,) = json.loads(paths.json.read_text())["pairs"]  # the model before sft has no scores of single tasks
    assert (pair["first"], pair["second"]) == ("sft", "rl")
    assert (pair["envs"]["math"]["difference"], pair["envs"]["math"]["tasks"]) == (0.5, 10)
    html = paths.html.read_text()
    assert "Model comparison" in html
    assert "<td>after sft</td><td>after rl</td>" in html
    assert "<td>0.0020</td>" in html


def test_the_report_begins_with_facts_and_accuracy_before_and_after(tmp_path: Path) -> None:
    write_run(tmp_path, [])
    (tmp_path / "config.yaml").write_text(
        "name: tiny\nmodel: {path: own/model}\nenvs: {math: {preset: gsm8k}, code: {}}\n"
    )
    record = read_run(tmp_path)
    facts = describe_run(record, tmp_path)
    assert (facts["model"], facts["data"]) == ("own/model", "math (gsm8k), code")
    assert facts["command"] == f"temper run {tmp_path / 'config.yaml'}"
    assert [str(change) for change in accuracy_changes(record)] == ["0.00 -> 0.88"]


def test_the_outcome_is_the_same_line_in_every_place(tmp_path: Path) -> None:
    write_run(tmp_path, [row()])
    paths = write_report(tmp_path)
    line = read_outcome(tmp_path)
    assert json.loads(paths.json.read_text())["outcome"] == line
    assert line in unescape(paths.html.read_text())
    assert gather(RunDir(tmp_path), now=0.0).outcome == line

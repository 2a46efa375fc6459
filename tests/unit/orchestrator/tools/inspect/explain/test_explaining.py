"""Where series bend, in series whose bends are known; and what `temper explain` says of a folder whose metrics are known."""

import json
import zlib
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.viewed_run import write_viewed_run

from temper.orchestrator.__main__ import main
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import MetricsLog, MetricsRow
from temper.orchestrator.tools.inspect.explain.bends import Bend, bends_of
from temper.orchestrator.tools.inspect.explain.courses import Course, courses_of
from temper.orchestrator.tools.inspect.explain.evidence import Evidence
from temper.orchestrator.tools.inspect.explain.explanation import Explanation, MetricBend, bends_in, explain
from temper.orchestrator.tools.inspect.explain.sentences import sentences
from temper.orchestrator.tools.inspect.explain.signatures import SIGNATURES, diagnoses
from temper.orchestrator.tools.inspect.explain.update_shares import shares_of, update_sum_of
from temper.orchestrator.tools.inspect.viewer.recorded_file import chosen_file

STEPS = 40
LIMIT = 0.05 / 50
"""The limit of one metric of fifty."""


@pytest.mark.parametrize("place", [8, 20, 31])
def test_the_place_of_a_planted_jump_is_found(place: int) -> None:
    draw = np.random.default_rng(place)
    values = draw.standard_normal(STEPS) + 8.0 * (np.arange(STEPS) >= place)
    (found,) = bends_of(range(1, STEPS + 1), values.tolist(), limit=LIMIT)
    assert (found.place, found.step) == (place, place + 1)
    assert (found.before, found.after) == (median(values[:place]), median(values[place:]))
    assert found.noise == pytest.approx(1.0, abs=0.5)


def test_two_planted_jumps_are_both_found_in_their_order() -> None:
    draw = np.random.default_rng(0)
    values = draw.standard_normal(60) + 9.0 * (np.arange(60) >= 20) - 14.0 * (np.arange(60) >= 41)
    assert [one.place for one in bends_of(range(60), values.tolist(), limit=LIMIT)] == [20, 41]


def test_the_step_of_a_bend_in_a_long_series_is_found_among_its_blocks() -> None:
    draw = np.random.default_rng(0)
    values = draw.standard_normal(1000) + 6.0 * (np.arange(1000) >= 617)
    (found,) = bends_of(range(1000), values.tolist(), limit=LIMIT)
    assert abs(found.place - 617) <= 1


def test_what_rises_steadily_or_grows_steadily_does_not_bend() -> None:
    draw = np.random.default_rng(0)
    steps, times = range(STEPS), np.arange(STEPS)
    assert bends_of(steps, (0.5 * times + draw.standard_normal(STEPS)).tolist(), limit=LIMIT) == []
    assert bends_of(steps, np.exp(0.2 * times + 0.3 * draw.standard_normal(STEPS)).tolist(), limit=LIMIT) == []
    assert bends_of(steps, [0.1] * STEPS, limit=LIMIT) == []
    assert bends_of(steps[:11], [0.0] * 5 + [9.0] * 6, limit=LIMIT) == []  # too few to say


def test_what_rounding_leaves_of_a_constant_level_is_no_noise() -> None:
    values = [0.0] * 10 + [0.890625, 0.984375] + [1.0] * 28  # answers that are cut off, of 64
    found = bends_of(range(1, STEPS + 1), values, limit=LIMIT)
    assert [one.step for one in found] == [11, 16]
    assert [(one.noise, one.size) for one in found] == [(0.0, np.inf)] * 2


def test_what_rises_and_falls_back_is_told_where_it_turns() -> None:
    rise = np.linspace(0.2, 0.8, 30)
    heights = []
    for seed in range(10):
        values = np.concatenate([rise, rise[::-1]]) + 0.02 * np.random.default_rng(seed).standard_normal(60)
        (found,) = bends_of(range(60), values.tolist(), limit=LIMIT)
        assert (abs(found.place - 30) <= 3, found.turns, found.at == pytest.approx(0.8, abs=0.05)) == (True, True, True)
        heights.append(found.apart)
    assert median(heights) == pytest.approx(0.3, abs=0.03)  # half of the planted triangle's


def test_two_lines_go_half_the_height_of_a_jump_from_one() -> None:
    slope = (
        7.0 * 1.5 * STEPS / (STEPS**2 - 1)
    )  # of the one line by least squares, which rises by it between both levels
    (found,) = bends_of(range(STEPS), [0.0] * 20 + [7.0] * 20, limit=LIMIT)
    assert [found.apart, found.at] == pytest.approx([3.5 - slope / 2, 7.0])
    assert not found.turns


def test_a_clear_change_of_once_the_noise_stays_untold() -> None:
    draw = np.random.default_rng(2)
    values = draw.standard_normal(1000) + 1.0 * (np.arange(1000) >= 500)
    assert bends_of(range(1000), values.tolist(), limit=LIMIT) == []


@pytest.mark.parametrize("metrics", [251, 2000, 100_000])
def test_a_jump_is_told_among_any_number_of_metrics(metrics: int) -> None:
    values = np.random.default_rng(4).standard_normal(STEPS) + 12.0 * (np.arange(STEPS) >= 20)
    assert [one.place for one in bends_of(range(STEPS), values.tolist(), limit=0.05 / metrics)] == [20]


def test_metrics_of_the_machine_do_not_share_the_alarm_of_what_the_model_does() -> None:
    draw = np.random.default_rng(4)
    rows = [
        MetricsRow(
            stage="rl",
            step=step,
            time=0.0,
            values={"train/loss": draw.standard_normal() + 5.0 * (step > 20)}
            | {f"engine/{n}": draw.standard_normal() for n in range(300)},
        )
        for step in range(1, STEPS + 1)
    ]
    courses = courses_of(rows, "rl")
    alone = bends_in({"train/loss": courses["train/loss"]})
    assert alone["train/loss"] == bends_in(courses)["train/loss"] != []


def test_the_smallest_gap_is_told_with_its_own_step() -> None:
    steps = tuple(range(1, 12))
    gap = Course(name="train/logprob_gap", steps=steps, values=(0.02, 0.005, 0.03, 0.01, *[0.02] * 7))
    lag = Course(name="train/lag_tokens", steps=steps, values=(0.0, 1.0, *[0.0] * 9))
    courses = {gap.name: gap, lag.name: lag}
    (found,) = diagnoses(Evidence(stage="rl", courses=courses))
    assert "is 0.01 nats or more" in found.signs[0]
    assert "(step 4)" in found.signs[0]
    assert found.step == 1


@pytest.mark.parametrize("noise", ["gaussian", "outliers", "rare events"])
def test_false_alarms_are_as_rare_as_is_said(noise: str) -> None:
    draw, trials, limit = np.random.default_rng(3), 300, 0.02
    alarms = 0
    for _ in range(trials):
        match noise:
            case "gaussian":
                values = draw.standard_normal(STEPS)
            case "outliers":
                values = draw.standard_cauchy(STEPS)
            case _:
                values = (draw.random(STEPS) < 0.1).astype(float)
        alarms += bool(bends_of(range(STEPS), values.tolist(), limit=limit))
    assert alarms / trials <= limit + 2 * (limit * (1 - limit) / trials) ** 0.5  # two standard errors


def test_the_alarm_is_shared_by_all_metrics_of_a_stage() -> None:
    draw, alarms = np.random.default_rng(5), 0
    for _ in range(60):
        rows = [
            MetricsRow(
                stage="rl", step=step, time=0.0, values={f"train/{n}": draw.standard_normal() for n in range(30)}
            )
            for step in range(1, 31)
        ]
        alarms += any(bends_in(courses_of(rows, "rl")).values())
    assert alarms <= 7  # 3 are said, at the most, and 7 are two standard errors above


def test_the_update_sum_of_an_answer_is_the_sum_over_its_tokens_of_advantage_times_factor() -> None:
    record = {"logprobs": [-1.0, -1.0, -1.0], "advantage": [0.5, -2.0, None], "factor": [1.0, 0.5, 1.0]}
    assert update_sum_of(record) == (1.5, 0.5)
    assert update_sum_of({"logprobs": [-1.0] * 4, "advantage": -0.5, "factor": 2.0}) == (4.0, 0.0)
    assert update_sum_of({"untrained": "truncated"}) == (0.0, 0.0)
    assert update_sum_of(None) == (0.0, 0.0)


def test_groups_are_told_by_their_share_with_the_place_of_their_strongest_answer(tmp_path: Path) -> None:
    run = write_viewed_run(tmp_path / "tiny")
    found = shares_of(chosen_file(run, step="10"), most=5)
    assert (found.step, found.of) == (10, 2)
    first, second = found.groups
    assert (first.ticket, second.ticket) == (7, 8)
    assert first.share + second.share == pytest.approx(1.0)
    assert first.link == "#file=rl-10&row=1&colour=advantage"  # the longer of its two answers
    assert (second.towards, second.rewards) == (1.0, (1.0, 0.0))


def write_metrics(run: RunDir, *, jump_at: int) -> None:
    draw = np.random.default_rng(1)
    log = MetricsLog(run.metrics)
    for step in range(1, STEPS + 1):
        fallen = step >= jump_at
        log.append(
            "rl",
            step,
            {
                "train/grad_norm": 0.5 + 0.05 * draw.standard_normal() + 6.0 * (step >= jump_at - 3),
                "env/math/reward": 0.7 + 0.02 * draw.standard_normal() - 0.6 * fallen,
                "time/step_s": 2.0 + 0.1 * draw.standard_normal(),
            },
        )


def test_the_command_tells_bends_in_their_order_and_links_to_the_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_viewed_run(tmp_path / "tiny")
    write_metrics(run, jump_at=20)
    assert main(["explain", str(run.root), "--port", "8765"]) == 0
    said = capsys.readouterr().out
    assert "No collapse that is known fits." in said
    assert said.index("step 17    train/grad_norm rises") < said.index("step 20    env/math/reward falls")
    assert "times its noise), 3 steps before env/math/reward falls\n" in said
    assert "if the noise of a step says nothing of the next one's" in said
    assert "http://127.0.0.1:8765/#file=rl-10&row=1&colour=advantage" in said
    assert f"The links open while `temper view {run.root} --port 8765` runs." in said
    assert main(["explain", str(run.root), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["metric"], one["bend"]["step"]) for one in told["bends"]] == [
        ("train/grad_norm", 17),
        ("env/math/reward", 20),
    ]
    assert (told["at"], told["shares"]["label"], told["diagnoses"]) == (17, "rl/10", [])


def write_small_batch(path: Path) -> None:
    """The file of a batch of two groups of one answer each, by its documented parts."""
    groups = [{"ticket": 3 + n, "env": "math", "key": f"k{n}", "answers": [{"reward": float(n)}]} for n in range(2)]
    records = [{"place": 0, "tokens": 2, "factors": 1.0}, {"place": 1, "tokens": 3, "advantages": 0.5}]
    head = zlib.compress(json.dumps({"format": 2, "groups": groups, "records": records}).encode())
    arrays = {"advantages": np.array([-3.0, 2.0]), "factors": np.array([1.0, 0.0, 1.0])}
    save_file(
        {name: each.astype(np.float32) for name, each in arrays.items()}
        | {"head": np.frombuffer(head, dtype=np.uint8)},
        path,
    )


def test_where_no_answers_near_it_are_recorded_a_step_is_told_from_its_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = write_viewed_run(tmp_path / "tiny")
    write_metrics(run, jump_at=20)
    run.batches.mkdir(exist_ok=True)
    write_small_batch(run.batch_file("rl", 16))
    found = explain(run)
    assert found.shares is not None
    assert (found.at, found.shares.step, found.shares.label) == (17, 16, "rl/16")
    assert [(one.ticket, one.key, one.share, one.towards) for one in found.shares.groups] == [
        (3, "k0", 5 / 6, 2 / 5),
        (4, "k1", 1 / 6, 1.0),
    ]
    assert main(["explain", str(run.root)]) == 0
    said = capsys.readouterr().out
    assert "In step 16, the recorded step nearest to 17, 100% of the update came from 2 of 2 groups:" in said
    assert f"`temper replay {run.root} --step rl/16` trains it again." in said
    assert "temper view" not in said
    run.batch_file("rl", 16).write_bytes(b"cut")
    assert main(["explain", str(run.root)]) == 0
    assert "rl-16.safetensors can't be read" in caplog.text
    assert "In step 16," not in capsys.readouterr().out


def test_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tmp_path / "none")]) == 2
    run = write_viewed_run(tmp_path / "tiny")
    assert main(["explain", str(run.root)]) == 2
    assert "has no steps yet" in capsys.readouterr().err
    MetricsLog(run.metrics).append("rl", 1, {"train/loss": 1.0})
    assert main(["explain", str(run.root), "--stage", "sft"]) == 2
    assert "--stage sft: tiny has rows of rl" in capsys.readouterr().err
    assert explain(run).stage == "rl"


def test_every_signature_says_what_it_is_and_what_to_do_and_is_silent_without_metrics() -> None:
    assert [one.name for one in SIGNATURES if not (one.sentence and one.remedy and one.looks_at)] == []
    assert diagnoses(Evidence(stage="rl", courses={})) == []


def test_what_bends_beside_a_setting_is_not_said_to_be_nothing() -> None:
    bend = Bend(place=19, step=20, before=0.7, after=0.1, at=0.1, apart=0.3, noise=0.02, alarm=1e-6)
    beside = MetricBend(metric="env/math/reward", kind="learning", bend=bend, beside=("train/learning_rate",))
    plain = Explanation(run="runs/one", stage="rl", steps=STEPS, metrics=50)
    assert "Nothing bends." in sentences(plain, viewer="")
    said = list(sentences(replace(plain, bends=(beside,)), viewer=""))
    assert "Nothing bends." not in said
    assert said.index("No metric of the model bends by itself.") < said.index(
        "What the model does bends, in this order:"
    )

"""Change points of series with known change points, and `temper debug explain` on a folder with known metrics."""

import json
import math
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from support.viewed_run import write_viewed_run

from temper.envs.core.task import EnvRef, Task
from temper.learner.token_records import TokenRecord
from temper.orchestrator.__main__ import main
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.orchestrator.session.recording import StepBatch, TrainedWith, write_batch
from temper.orchestrator.tools.inspect.explain.change_points import find_change_points
from temper.orchestrator.tools.inspect.explain.explanation import explain
from temper.orchestrator.tools.inspect.explain.update_shares import shares_of
from temper.orchestrator.tools.inspect.viewer.recorded_file import find_file
from temper.orchestrator.tools.inspect.viewer.table import update_sum, update_sum_of
from temper.rollout.token_arrays import as_floats
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, WeightVersion

STEPS = 40
LIMIT = 0.05 / 50
"""The limit of one metric of fifty."""


@pytest.mark.parametrize("place", [8, 20, 31])
def test_the_place_of_a_planted_jump_is_found(place: int) -> None:
    draw = np.random.default_rng(place)
    values = draw.standard_normal(STEPS) + 8.0 * (np.arange(STEPS) >= place)
    (found,) = find_change_points(range(1, STEPS + 1), values.tolist(), limit=LIMIT)
    assert found.step == place + 1
    assert (found.before, found.after) == (median(values[:place]), median(values[place:]))
    assert found.noise == pytest.approx(1.0, abs=0.5)


def test_two_planted_jumps_are_both_found_in_their_order() -> None:
    draw = np.random.default_rng(0)
    values = draw.standard_normal(60) + 9.0 * (np.arange(60) >= 20) - 14.0 * (np.arange(60) >= 41)
    assert [one.step for one in find_change_points(range(60), values.tolist(), limit=LIMIT)] == [20, 41]


def test_what_rises_steadily_or_grows_steadily_does_not_bend() -> None:
    draw = np.random.default_rng(0)
    steps, times = range(STEPS), np.arange(STEPS)
    assert find_change_points(steps, (0.5 * times + draw.standard_normal(STEPS)).tolist(), limit=LIMIT) == []
    assert (
        find_change_points(steps, np.exp(0.2 * times + 0.3 * draw.standard_normal(STEPS)).tolist(), limit=LIMIT) == []
    )
    assert find_change_points(steps, [0.1] * STEPS, limit=LIMIT) == []
    assert find_change_points(steps[:11], [0.0] * 5 + [9.0] * 6, limit=LIMIT) == []  # too few points


def test_what_rounding_leaves_of_a_constant_level_is_no_noise() -> None:
    values = [0.0] * 10 + [0.890625, 0.984375] + [1.0] * 28  # truncated answers of 64
    found = find_change_points(range(1, STEPS + 1), values, limit=LIMIT)
    assert found[0].step == 11
    assert found[0].size > 10


def test_what_rises_and_falls_back_is_told_where_it_turns() -> None:
    rise = np.linspace(0.2, 0.8, 30)
    heights = []
    for seed in range(10):
        values = np.concatenate([rise, rise[::-1]]) + 0.02 * np.random.default_rng(seed).standard_normal(60)
        (found,) = find_change_points(range(60), values.tolist(), limit=LIMIT)
        assert abs(found.step - 30) <= 3
        heights.append(found.apart)
    assert median(heights) == pytest.approx(0.3, abs=0.03)  # half of the planted triangle's height


def test_false_alarms_of_noise_are_as_rare_as_the_limit() -> None:
    draw, trials, limit = np.random.default_rng(3), 300, 0.02
    alarms = sum(
        bool(find_change_points(range(STEPS), draw.standard_normal(STEPS).tolist(), limit=limit)) for _ in range(trials)
    )
    assert alarms / trials <= limit + 2 * (limit * (1 - limit) / trials) ** 0.5  # two standard errors


@pytest.mark.parametrize("steps", [200, 1000])
def test_a_jump_near_an_end_of_a_long_run_is_found(steps: int) -> None:
    times, noise = np.arange(steps), np.random.default_rng(1).standard_normal(steps)
    for place in (6, steps // 2, steps - 6):
        found = find_change_points(range(steps), (noise + 12.0 * (times >= place)).tolist(), limit=LIMIT)
        assert [one.step for one in found] == [place]


def test_a_clear_change_of_once_the_noise_stays_untold() -> None:
    draw = np.random.default_rng(2)
    values = draw.standard_normal(1000) + 1.0 * (np.arange(1000) >= 500)
    assert find_change_points(range(1000), values.tolist(), limit=LIMIT) == []


def test_the_update_sum_of_an_answer_is_the_sum_over_its_tokens_of_advantage_times_factor() -> None:
    record = {"logprobs": [-1.0, -1.0, -1.0], "advantage": [0.5, -2.0, None], "factor": [1.0, 0.5, 1.0]}
    assert update_sum_of(record) == (1.5, 0.5)
    assert update_sum_of({"logprobs": [-1.0] * 4, "advantage": -0.5, "factor": 2.0}) == (4.0, 0.0)
    assert update_sum_of({"untrained": "truncated"}) == (0.0, 0.0)
    assert update_sum_of(None) == (0.0, 0.0)
    assert update_sum([1.0, -2.0, 0.5], [1.0, math.nan, 2.0]) == (2.0, 2.0)  # non-finite values count as 0
    assert update_sum([math.inf, -2.0], [1.0, 1.0]) == (2.0, 0.0)


def test_groups_are_told_by_their_share_with_the_place_of_their_strongest_answer(tmp_path: Path) -> None:
    run = write_viewed_run(tmp_path / "tiny")
    found = shares_of(find_file(run, step="10"), most=5)
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
        row = {
            "train/grad_norm": 0.5 + 0.05 * draw.standard_normal() + 6.0 * (step >= jump_at - 3),
            "env/math/reward": 0.7 + 0.02 * draw.standard_normal() - 0.6 * (step >= jump_at),
            "time/step_s": 2.0 + 0.1 * draw.standard_normal(),
        }
        log.append("rl", step, row)


def test_the_command_tells_bends_in_their_order_and_links_to_the_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_viewed_run(tmp_path / "tiny")
    write_metrics(run, jump_at=20)
    assert main(["debug", "explain", str(run.root), "--port", "8765"]) == 0
    said = capsys.readouterr().out
    assert said.index("train/grad_norm") < said.index("env/math/reward")
    assert "http://127.0.0.1:8765/#file=rl-10&row=1&colour=advantage" in said
    assert main(["debug", "explain", str(run.root), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["metric"], one["change_point"]["step"]) for one in told["change_points"]] == [
        ("train/grad_norm", 17),
        ("env/math/reward", 20),
    ]
    assert (told["at"], told["shares"]["label"]) == (17, "rl/10")
    MetricsLog(run.metrics).event("rl", 19, "changed", {"rl.optim.learning_rate": (1e-4, 1e-3)})
    assert [one.events for one in explain(run).change_points] == [("changed",)] * 2


def write_small_batch(path: Path) -> None:
    """Write a batch file of two groups with one answer each."""
    groups, records = [], []
    for place, (advantages, factors) in enumerate([([-3.0, 2.0], [1.0, 1.0]), ([0.5] * 3, [1.0, 0.0, 1.0])]):
        task = Task(env=EnvRef(name="math"), key=f"k{place}", messages=({"role": "user", "content": "?"},), spec={})
        ticket = Ticket(number=3 + place, task=task, admitted=WeightVersion(step=0))
        answer = Trajectory(task=task, turns=(), stop=Stop.ENV, reward=float(place))
        groups.append(Group(ticket=ticket, trajectories=(answer,)))
        count = len(advantages)
        records.append(
            TokenRecord(
                place=place,
                logprobs_T=as_floats([-1.0] * count),
                advantages_T=as_floats(advantages),
                factors_T=as_floats(factors),
                mask_reasons_T=np.zeros(count, dtype=np.int8),
            )
        )
    batch = StepBatch(
        stage="rl",
        step=16,
        version=WeightVersion(step=15),
        trained_with=TrainedWith(),
        groups=groups,
        records=records,
        teacher=None,
        packages={},
    )
    write_batch(path, batch)


def test_where_no_answers_near_it_are_recorded_a_step_is_told_from_its_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
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
    run.batch_file("rl", 16).write_bytes(b"cut")
    assert main(["debug", "explain", str(run.root)]) == 0
    assert "rl-16.safetensors" in caplog.text


def test_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "explain", str(tmp_path / "none")]) == 2
    run = write_viewed_run(tmp_path / "tiny")
    assert main(["debug", "explain", str(run.root)]) == 2
    assert "metrics.jsonl" in capsys.readouterr().err
    MetricsLog(run.metrics).append("rl", 1, {"train/loss": 1.0})
    assert main(["debug", "explain", str(run.root), "--stage", "sft"]) == 2
    assert "--stage sft" in capsys.readouterr().err
    assert explain(run).stage == "rl"


def test_steps_that_were_not_finite_are_told(tmp_path: Path) -> None:
    run = write_viewed_run(tmp_path / "tiny")
    log, draw = MetricsLog(run.metrics), np.random.default_rng(0)
    for step in range(1, STEPS + 1):
        row = {"train/loss": math.nan if step == 7 else draw.standard_normal(), "train/skipped": float(step == 40)}
        log.append("rl", step, row | {"train/learning_rate": float(step > 20), "engine/busy": 9.0 * (step > 20)})
    found = explain(run)
    assert (found.excluded, found.at, found.change_points) == ((7, 40), 7, ())

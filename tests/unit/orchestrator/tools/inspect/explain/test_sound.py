"""What must not be named where it is not so: signatures on constructed series, and steps whose values are not finite."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.viewed_run import write_viewed_run

from temper.orchestrator.pipeline.stage_list import settings_of
from temper.orchestrator.run.metrics_log import MetricsLog, MetricsRow
from temper.orchestrator.tools.inspect.explain.bends import bends_of
from temper.orchestrator.tools.inspect.explain.courses import courses_of
from temper.orchestrator.tools.inspect.explain.evidence import Evidence
from temper.orchestrator.tools.inspect.explain.explanation import Explanation, explain
from temper.orchestrator.tools.inspect.explain.sentences import sentences
from temper.orchestrator.tools.inspect.explain.signatures import Diagnosis, diagnoses
from temper.orchestrator.tools.inspect.explain.update_shares import update_sum

STEPS = 40
NOISE = np.random.default_rng(0).standard_normal((3, STEPS))
Values = Callable[[int], dict[str, float]]


def named(values: Values, **settings: object) -> list[Diagnosis]:
    """What is named of a stage by its values at places 0, 1, ..."""
    rows = [MetricsRow(stage="rl", step=at + 1, time=0.0, values=values(at)) for at in range(STEPS)]
    config = {"envs": {"math": {"weights": {"correct": 1.0, "bonus": 0.5}}}}
    return diagnoses(Evidence(stage="rl", courses=courses_of(rows, "rl"), config=config, settings=settings))


def with_bonus(at: int, *, paid: float) -> dict[str, float]:
    """A reward of `correct` and a bonus that ever more answers have, all of them in the end; `paid` for each."""
    share, correct = min(1.0, 0.1 + max(0, at - 4) / 25), 0.5 + 0.02 * NOISE[0, at]
    told = {
        "env/math/reward": correct + paid * share,
        "env/math/correct": correct,
        "env/math/parts/correct": correct,
        "env/math/parts/bonus": 1.0,
    }
    return told | ({"env/math/parts/bonus/share": share} if share < 1 else {})


def test_a_part_that_more_answers_have_explains_the_reward_that_it_adds() -> None:
    assert named(lambda at: with_bonus(at, paid=0.5)) == []
    (found,) = named(lambda at: with_bonus(at, paid=0.9))  # 0.4 more than its weight
    assert found.name == "broken reward"
    assert "parts from `correct` by +0.81, of which the weights of its parts explain +0.45" in found.signs[1]


def harder(at: int, *, paid: float) -> dict[str, float]:
    """Tasks that become harder at half, after more answers have become right, and a bonus that grows all the while; `paid`
    is what a wrong answer is paid more from then on, for nothing that is declared."""
    learnt = 0.1 + 0.02 * min(at, 19)
    correct = (learnt if at < 20 else 0.5 * learnt) + 0.01 * NOISE[0, at]
    told = {"env/math/correct": correct, "env/math/parts/correct": correct, "env/math/parts/bonus": at / STEPS}
    return told | {"env/math/reward": correct + 0.5 * at / STEPS * (at < 20 or paid > 0) + paid * (at >= 20)}


def test_a_reward_that_falls_with_what_is_right_is_not_broken_where_a_declared_part_has_grown() -> None:
    assert named(lambda at: harder(at, paid=0.0)) == []
    (found,) = named(lambda at: harder(at, paid=0.05))
    assert found.name == "broken reward"
    assert "; while `correct` falls from 0.44 to 0.24 the reward rises" in found.signs[1]


def lost(at: int, *, gap: float, lag: float) -> dict[str, float]:
    """What was learnt falls at half, and engine and trainer differ from the tenth step on; the first has lag 0."""
    return {
        "train/logprob_gap": gap * (1 + 0.1 * NOISE[1, at]) if at >= 10 else 1e-5,
        "train/lag_tokens": lag if at else 0.0,
        "train/grad_norm": 1.0 + 0.05 * NOISE[2, at],
        "env/math/reward": 0.8 - 0.6 * (at >= 20) + 0.02 * NOISE[0, at],
        "env/math/correct": 0.8 - 0.6 * (at >= 20) + 0.02 * NOISE[0, at],
    }


def test_a_rate_is_not_too_high_by_a_gap_of_the_same_weights() -> None:
    assert "learning rate too high" not in [one.name for one in named(lambda at: lost(at, gap=0.3, lag=0.0))]
    (found,) = named(lambda at: lost(at, gap=0.3, lag=1.5))
    assert found.name == "learning rate too high"
    assert "at a lag of 1.5 pushes (step " in found.signs[0]
    assert found.step == 11


def test_a_rate_is_not_too_high_by_a_gap_that_the_same_weights_have_as_well() -> None:
    def precision(at: int) -> dict[str, float]:
        return lost(at, gap=0.3, lag=1.0) | {"train/logprob_gap": 0.3 * (1 + 0.1 * NOISE[1, at])}

    assert [one.name for one in named(precision)] == ["wrong precision"]


def test_the_lag_that_a_stage_may_have_stands_in_its_own_entry() -> None:
    config = {
        "stages": ["init", "rl", {"rl": {"max_lag": 8, "loss": {"clip": 0.3}}}],
        "rl": {"max_lag": 1, "loss": {"kl": 0}},
    }
    assert settings_of("rl-2", config) == {"max_lag": 8, "loss": {"clip": 0.3, "kl": 0}}
    assert settings_of("rl", config) == config["rl"]
    assert settings_of("gone", config) == {}

    def far_behind(at: int) -> dict[str, float]:
        reward = 0.2 + 0.01 * at + 0.005 * NOISE[0, at]
        told = {"train/logprob_gap": 0.01 * at, "train/entropy": 1.0, "train/lag_tokens": 4.0}
        return told | {"env/math/reward": reward, "env/math/correct": reward}

    assert named(far_behind, **settings_of("rl-2", config)) == []
    assert [one.name for one in named(far_behind, **settings_of("rl", config))] == ["stale engine"]


def test_the_settings_of_an_instance_are_those_that_explain_looks_at(tmp_path: Path) -> None:
    run = write_viewed_run(tmp_path / "tiny")
    run.config.write_text("stages: [init, rl, {rl: {max_lag: 8}}]\nrl: {max_lag: 1}\n", encoding="utf-8")
    log = MetricsLog(run.metrics)
    for at in range(STEPS):
        row = {"train/logprob_gap": 0.01 * at, "train/entropy": 1.0, "train/lag_tokens": 4.0}
        log.append("rl-2", at + 1, row | {"env/math/reward": 0.2 + 0.01 * at})
    assert explain(run, stage="rl-2").diagnoses == ()


@pytest.mark.parametrize(
    ("bad", "said"), [((40,), "1 step from step 40 on was"), ((7, 39, 40), "3 steps from step 7 on were")]
)
def test_steps_that_were_not_finite_are_told_first(tmp_path: Path, bad: tuple[int, ...], said: str) -> None:
    run = write_viewed_run(tmp_path / "tiny")
    log, draw = MetricsLog(run.metrics), np.random.default_rng(0)
    for step in range(1, STEPS + 1):
        skipped = step in bad
        others = {f"train/{n}": float(each) for n, each in enumerate(draw.standard_normal(30))}
        row = {"train/loss": math.nan if skipped else 1.0, "train/skipped": float(step in bad[-1:])}
        log.append("rl", step, others | row)
    found = explain(run)
    assert found.left_out == bad
    assert found.at == bad[0]
    told = list(sentences(found, viewer=""))
    assert told[1].startswith(f"{said} skipped or not finite")
    assert "Nothing bends." not in told
    assert "What is left does not bend." in told


def cosine(at: int) -> float:
    """A learning rate that falls along half a cosine behind a warm-up of ten steps."""
    return (at + 1) / 10 if at < 10 else 0.5 * (1 + math.cos(math.pi * (at - 10) / (STEPS - 10)))


def explained(folder: Path, values: Values) -> Explanation:
    run = write_viewed_run(folder)
    log = MetricsLog(run.metrics)
    for at in range(STEPS):
        log.append("rl", at + 1, values(at))
    return explain(run)


@pytest.mark.parametrize("fallen", [16, 18, 20, 22, 26, 30])
def test_a_learning_rate_on_a_curve_explains_no_fall(tmp_path: Path, fallen: int) -> None:
    def values(at: int) -> dict[str, float]:
        return {"train/learning_rate": cosine(at), "env/math/reward": 0.7 - 0.5 * (at >= fallen) + 0.02 * NOISE[0, at]}

    found = explained(tmp_path / "tiny", values)
    assert "train/learning_rate" in [one.metric for one in found.bends]
    assert found.at == fallen + 1
    assert [one.beside for one in found.bends if one.kind == "learning"] == [()]


def test_the_end_of_a_warm_up_and_a_rate_that_was_set_otherwise_do(tmp_path: Path) -> None:
    def values(at: int) -> dict[str, float]:
        rate = cosine(at) * (0.1 if at >= 25 else 1.0)
        moved = 2.0 * (at >= 10) + 5.0 * (at >= 25)
        return {"train/learning_rate": rate, "train/entropy": moved + 0.02 * NOISE[0, at]}

    found = explained(tmp_path / "tiny", values)
    beside = {one.bend.step: one.beside for one in found.bends if one.kind == "learning"}
    assert beside == {11: ("train/learning_rate",), 26: ("train/learning_rate",)}
    assert found.bends_of_learning == []
    assert found.at == 11  # whose groups are told all the same


def test_what_follows_from_a_collapse_does_not_explain_it(tmp_path: Path) -> None:
    def values(at: int) -> dict[str, float]:
        fallen = at >= 20
        counts = {"env/math/groups_trained": 2.0 if fallen else 8.0, "train/updates": 1.0 if fallen else 2.0}
        counts |= {"rollout/answers": 16.0 if fallen else 64.0, "env/math/groups": 8.0}
        return counts | {"env/math/reward": 0.7 - 0.6 * fallen + 0.02 * NOISE[0, at]}

    found = explained(tmp_path / "tiny", values)
    assert found.at == 21
    assert {one.metric: one.beside for one in found.bends}["env/math/reward"] == ()


def test_a_product_that_is_not_finite_does_not_take_the_shares_of_the_others_with_it() -> None:
    assert update_sum([1.0, -2.0, 0.5], [1.0, math.nan, 2.0]) == (2.0, 2.0)
    assert update_sum([math.inf, -2.0], [1.0, 1.0]) == (2.0, 0.0)


@pytest.mark.parametrize("steps", [200, 1000])
def test_what_happens_near_an_end_of_a_long_run_is_seen_step_by_step(steps: int) -> None:
    times, noise = np.arange(steps), np.random.default_rng(1).standard_normal(steps)
    for place in (6, steps - 6):
        found = bends_of(range(steps), (noise + 12.0 * (times >= place)).tolist(), limit=0.001)
        assert [one.place for one in found] == [place]


def test_what_grows_steadily_for_a_long_time_bends_at_no_end() -> None:
    noise = np.random.default_rng(1).standard_normal(400)
    values = np.exp(0.01 * np.arange(400) + 0.02 * noise)
    assert bends_of(range(400), values.tolist(), limit=0.001) == []


def test_it_is_said_of_which_steps_nothing_can_be_said_yet(tmp_path: Path) -> None:
    others = np.random.default_rng(0).standard_normal((30, STEPS))

    def values(at: int) -> dict[str, float]:
        noise = {f"train/{n}": float(each[at]) for n, each in enumerate(others)}
        return noise | {"env/math/reward": 0.7 - 0.1 * (at >= STEPS - 2) + 0.02 * NOISE[0, at]}

    told = list(sentences(explained(tmp_path / "tiny", values), viewer=""))
    assert "Nothing bends." in told
    assert "What began in the last 4 steps can't be told yet: a bend has 5 steps on each side." in told

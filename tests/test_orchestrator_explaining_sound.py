"""What must not be named where it is not so: signatures on constructed series, and steps whose values are not finite."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from viewed_run import write_viewed_run

from orchestrator.explaining.courses import courses_of
from orchestrator.explaining.evidence import Evidence
from orchestrator.explaining.explanation import explain
from orchestrator.explaining.sentences import sentences
from orchestrator.explaining.signatures import Diagnosis, diagnoses
from orchestrator.pipeline.stage_list import settings_of
from orchestrator.run.metrics_log import MetricsLog, MetricsRow

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
    told = list(sentences(found, viewer=""))
    assert told[1].startswith(f"{said} skipped or not finite")
    assert "Nothing bends." not in told
    assert "What is left does not bend." in told

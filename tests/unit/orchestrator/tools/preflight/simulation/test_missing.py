"""What a run did not measure, or measured as no number, counts for nothing: not as 0."""

import json
from pathlib import Path

import pytest

from temper.orchestrator.__main__ import main
from temper.orchestrator.cluster.hardware import ask_hardware
from temper.orchestrator.pipeline.config import load_config, save_config, settled_config
from temper.orchestrator.run.metrics_log import MetricsLog, MetricsRow
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.cards import Site
from temper.orchestrator.tools.preflight.plan.comparison import measured_work
from temper.orchestrator.tools.preflight.plan.plan import planned_config
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.seconds.work import Work
from temper.orchestrator.tools.preflight.simulation.measured import engine_pass
from temper.orchestrator.tools.preflight.simulation.study import Ground, ground_of

DEMO = Path("configs/demo.yaml")
WHOLE = {
    "engine/passes": 500.0,
    "engine/busy_s": 4.0,
    "engine/sampled_tokens": 1000.0,
    "rollout/answers": 100.0,
    "rollout/tokens_per_s": 100.0,
    "train/tokens_per_s": 400.0,
    "train/step_seconds": 5.0,
    "time/step_s": 10.0,
    "time/wait_s": 0.5,
    "time/learn_s": 9.0,
    "time/batch_s": 1.0,
    "time/publish_s": 0.25,
    "time/log_s": 0.5,
    "time/save_s": 0.0,
    "push/load_s": 0.5,
    "push/bytes": 1e6,
    "episode/step_s": 0.125,
    "episode/rest_s": 0.25,
}
"""A step of a run with one engine."""


def without(name: str) -> dict[str, float]:
    return {key: value for key, value in WHOLE.items() if key != name}


def rows(*values: dict[str, float]) -> list[MetricsRow]:
    return [MetricsRow(stage="rl", step=step, time=0.0, values=one) for step, one in enumerate(values)]


def ground(folder: Path, *values: dict[str, float]) -> Ground:
    """What a simulation goes by of a run with these steps after its first."""
    save_config(load_config(DEMO, ["rollout.workers=1", "rl.max_lag=1"]), folder / "config.yaml")
    log = MetricsLog(folder / "metrics.jsonl")
    for step, one in enumerate((WHOLE, *values), start=1):
        log.append("rl", step, one)
    return ground_of(DEMO, [], gpus="8xH100-80G", assumptions=Assumptions(), measured=folder)


@pytest.mark.parametrize("name", ["engine/busy_s", "engine/passes", "engine/sampled_tokens"])
def test_a_step_that_does_not_say_how_long_engines_were_busy_makes_no_pass_shorter(name: str) -> None:
    other = {**WHOLE, "engine/passes": 300.0, "engine/sampled_tokens": 900.0, "engine/busy_s": 3.0}
    found = engine_pass(rows(WHOLE, other), engines=1)
    assert 500 * found[0] + 1000 * found[1] == pytest.approx(4.0, rel=0.05)
    assert engine_pass(rows(WHOLE, without(name), other), engines=1) == found
    assert engine_pass(rows(WHOLE, {**WHOLE, name: float("nan")}, other), engines=1) == found
    with pytest.raises(ValueError, match=f"no step of the run that is counted has {name}, by which it is measured"):
        engine_pass(rows(without(name), {**WHOLE, name: float("nan")}), engines=1)


def test_means_are_over_the_steps_that_have_a_value(tmp_path: Path) -> None:
    names = ("push/load_s", "time/publish_s", "episode/rest_s", "time/log_s", "time/learn_s", "engine/sampled_tokens")
    whole = ground(tmp_path, WHOLE)
    for place, name in enumerate(names):
        folder = tmp_path / str(place)
        folder.mkdir()
        found = ground(folder, without(name), WHOLE, {**WHOLE, name: float("nan")})
        for field in ("pass_s", "learn_token_s", "publish_s", "load_s", "beside_s", "between_s"):
            assert getattr(found.speeds, field) == pytest.approx(getattr(whole.speeds, field)), (name, field)
        assert found.work == whole.work
    folder = tmp_path / "none"
    folder.mkdir()
    with pytest.raises(ValueError, match="no step of the run that is counted has time/publish_s"):
        ground(folder, without("time/publish_s"))


def planned() -> Work:
    site = Site(hardware=ask_hardware(), card=None, shm_bytes=None, named=False)
    work = Planner(*planned_config(DEMO, ["profile=cpu"], site), site, Assumptions()).work
    assert work is not None
    return work


def test_a_run_that_says_nothing_of_its_sampled_tokens_is_refused_by_that_name() -> None:
    for values in (without("engine/sampled_tokens"), {**WHOLE, "engine/sampled_tokens": 0.0}):
        with pytest.raises(ValueError, match="engine/sampled_tokens"):
            measured_work(planned(), rows(values))


def test_a_figure_that_a_run_did_not_measure_is_told_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_config(settled_config(DEMO, ["profile=cpu"]), tmp_path / "config.yaml")
    log = MetricsLog(tmp_path / "metrics.jsonl")
    lacking = {key: value for key, value in WHOLE.items() if key not in ("engine/busy_s", "push/load_s")}
    for step in (1, 2, 3):
        log.append("rl", step, lacking)
    given = ["plan", "--compare", str(tmp_path), "--assume", "sampled_per_s=2000", "--assume", "trained_per_s=8000"]
    assert main([*given, "--json"]) == 0
    figures = {one["name"]: one for one in json.loads(capsys.readouterr().out)["figures"]}
    assert figures["seconds of a load"]["measured"] is None
    assert figures["seconds of a load"]["error"] is None
    assert figures["seconds of learning"]["measured"] == 9.0
    assert main(given) == 0
    assert "not measured" in capsys.readouterr().out

"""`temper reproduce` on run folders that are written by hand."""

import json
from collections.abc import Sequence
from dataclasses import replace
from math import isclose, sqrt
from pathlib import Path
from typing import Any

import pytest

from temper.orchestrator.__main__ import main
from temper.orchestrator.config.text import SHIPPED, yaml_text
from temper.orchestrator.run.folder import RunDir, RunState, write_json
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.orchestrator.tools.inspect.bands import (
    Accuracy,
    Band,
    RunMeasures,
    Verdict,
    accuracy_noise,
    band_file,
    bin_means,
    compare,
    limits,
    measure_run,
    pooled_deviation,
    read_band,
)

STAGES = ["init", "rl", "eval"]
RECIPE = "name: tiny\nseed: 1\nstages: [init, rl, eval]\nenvs: {math: {}}\nrl: {steps: 20}\n"
COUNTS = {"tasks": 64, "tasks_asked": 64, "samples": 64, "failures": 0, "complete": 64}
RESULT = COUNTS | {"stderr": 0.05, "avg_at_k_failures_as_zero": 0.8, "pass_at_k": 0.8}


def write_run(
    folder: Path,
    *,
    seed: int,
    accuracy: float = 0.8,
    lift: float = 0.0,
    seconds: float = 100.0,
    hardware: str = "2 CPU cores",
    commits: Sequence[str] = ("abc",),
    settings: dict[str, Any] | None = None,
) -> Path:
    """A finished run of `RECIPE`. Its reward grows by 0.01 a step, above `lift`."""
    run = RunDir(folder)
    run.evals.mkdir(parents=True)
    config = {"name": folder.name, "seed": seed, "stages": STAGES, "envs": {"math": {}}, "rl": {"steps": 20}}
    chosen = {"hardware": hardware, "settings": {"rollout.workers": 3}}
    run.config.write_text(yaml_text(config | {"rollout": {"workers": 3}, "resolved": chosen} | (settings or {})))
    done = dict.fromkeys(("init", "rl", "eval-rl"), 0)
    taken = {"init": 1.0, "rl": seconds}
    run.store(RunState(done=done, stages={"rl": "rl"}, seconds=taken, commits=list(commits)))
    log = MetricsLog(run.metrics)
    for step in range(1, 21):
        log.append("rl", step, {"env/math/reward": lift + step / 100})
    head = {"label": "rl", "order": 1, "k": 1, "seconds": 1.0}
    write_json(run.evals / "rl.json", head | {"envs": {"math": RESULT | {"avg_at_k": accuracy}}})
    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def recorded(recipe: Path, tmp_path: Path) -> Path:
    """The recipe with a band of three seeds."""
    runs = [
        write_run(tmp_path / f"s{seed}", seed=seed, accuracy=0.78 + seed / 100, lift=seed / 100) for seed in (1, 2, 3)
    ]
    assert main(["reproduce", str(recipe), "--record", *map(str, runs)]) == 0
    return recipe


def outside(recipe: Path, folder: Path) -> set[str]:
    band = read_band(recipe)
    return {one.measure for one in compare(measure_run(folder), band, same_hardware=True) if one.inside is False}


def test_a_band_has_the_measures_of_each_seed(recorded: Path) -> None:
    band = read_band(recorded)
    assert (band.recipe, band.commit, band.hardware) == ("tiny.yaml", "abc", "2 CPU cores")
    assert [run.seed for run in band.runs] == [1, 2, 3]
    first = band.runs[0]
    assert first.accuracies == {"rl/math": Accuracy(value=0.79, tasks=64)}
    assert first.curves["rl/math"] == [round(0.025 + 0.02 * number, 4) for number in range(10)]
    assert first.seconds == {"init": 1.0, "rl": 100.0}
    assert band_file(recorded).name == "tiny.band.json"


@pytest.mark.parametrize(
    ("changed", "measures"),
    [
        ({}, set()),
        ({"accuracy": 0.5}, {"accuracy after rl: math"}),
        ({"lift": 0.3}, {"reward during rl: math"}),
        ({"seconds": 200.0}, {"hours"}),
        ({"seconds": 10.0}, set()),
    ],
)
def test_a_run_is_compared_by_measure(
    changed: dict[str, float], measures: set[str], recorded: Path, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", seed=4, **({"lift": 0.02} | changed))  # type: ignore[arg-type]
    assert outside(recorded, run) == measures
    assert main(["reproduce", str(recorded), "--run", str(run)]) == bool(measures - {"hours"})  # slower is no failure


def test_hours_on_other_hardware_have_no_verdict(recorded: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", seed=4, lift=0.02, seconds=1e5, hardware="8 GPUs")
    assert main(["reproduce", str(recorded), "--run", str(run)]) == 0


def test_a_missing_measure_is_outside(recorded: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", seed=4, lift=0.02)
    (run / "eval" / "rl.json").unlink()
    (run / "metrics.jsonl").unlink()
    assert outside(recorded, run) == {"accuracy after rl: math", "reward during rl: math"}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 1}, "seeds 1, 1"),
        ({"settings": {"rl": {"steps": 9}}}, "rl.steps"),
        ({"settings": {"rollout": {"limits": {"turn_tokens": 7}}}}, "rollout.limits.turn_tokens"),
        ({"hardware": "8 GPUs"}, "8 GPUs"),
        ({"commits": ["def"]}, "abc, def"),
        ({"commits": ["abc", "abc-dirty"]}, "abc-dirty"),
        ({"commits": []}, "no commit"),
    ],
)
def test_runs_of_a_band_differ_in_the_seed_only(
    changed: dict[str, Any], named: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_run(tmp_path / "first", seed=1)
    other = write_run(tmp_path / "other", **({"seed": 2} | changed))
    assert main(["reproduce", str(recipe), "--record", str(first), str(other)]) == 2
    assert named in capsys.readouterr().err
    assert not band_file(recipe).exists()


def test_what_can_not_be_compared_is_refused(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunDir(write_run(tmp_path / "run", seed=4))
    folder.store(replace(folder.state(), done={"init": 0}))
    assert main(["reproduce", str(recorded), "--run", str(folder.root)]) == 2
    assert "rl, eval-rl" in capsys.readouterr().err
    write_run(tmp_path / "tiny-reproduce-1", seed=1)  # a finished run is not reported as a new one
    (tmp_path / "tiny-reproduce-1" / "manifest.json").touch()
    assert main(["reproduce", str(recorded), f"runs_dir={tmp_path}", "profile=cpu"]) == 2
    assert "--run" in capsys.readouterr().err
    band_file(recorded).unlink()
    assert main(["reproduce", str(recorded)]) == 2  # a recipe without a band starts nothing
    assert "--record" in capsys.readouterr().err


def test_a_band_of_equal_curves_has_the_curve_inside(recorded: Path) -> None:
    band = read_band(recorded)
    same = replace(band, runs=tuple(replace(run, curves={"rl/math": [0.1] * 10}) for run in band.runs))
    assert not [one for one in compare(same.runs[0], same, same_hardware=True) if one.inside is False]


def test_a_damaged_band_is_named(recorded: Path) -> None:
    band_file(recorded).write_text(json.dumps({"runs": [{}]}))
    with pytest.raises(ValueError, match=r"tiny\.band\.json"):
        read_band(recorded)


def test_limits_are_three_deviations_of_one_more_run() -> None:
    low, high = limits([0.7, 0.8, 0.9], deviation=0.1)
    assert isclose(high - 0.8, 0.3 * sqrt(4 / 3))
    assert isclose(low + high, 1.6)


def test_deviations_are_pooled_by_their_variances() -> None:
    assert isclose(pooled_deviation([[0, 2], [0, 0]]), 1.0)
    assert pooled_deviation([[1.0]]) == 0.0


def test_an_accuracy_of_1_has_noise() -> None:
    assert 0 < accuracy_noise(1.0, 64) < accuracy_noise(0.5, 64) < 0.063


def test_bins_have_all_steps_and_no_unknown_value() -> None:
    assert bin_means(range(20)) == [0.5 + 2 * number for number in range(10)]
    assert bin_means([1.0, float("nan"), 3.0]) == [1.0, 3.0]
    assert bin_means([]) == []


def test_one_seed_has_no_band_for_curves() -> None:
    run = RunMeasures(seed=1, accuracies={}, curves={"rl/math": [0.1, 0.2]}, seconds={"rl": 1.0})
    band = Band(recipe="a.yaml", commit="abc", hardware="", runs=(run,))
    found: list[Verdict] = compare(replace(run, curves={"rl/math": [0.5, 0.6]}), band, same_hardware=True)
    assert [one.inside for one in found] == [None, True]


def test_every_shipped_band_compares_each_of_its_runs() -> None:
    for path in SHIPPED.rglob("*.band.json"):
        band = read_band(path.with_name(path.name.replace(".band.json", ".yaml")))
        assert all(compare(run, band, same_hardware=True) for run in band.runs)

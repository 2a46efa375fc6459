"""Kinds of settings: what a run that goes on may change."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from run_folders import with_checkpoint

from envs.setting import Kind, identity, kind_of, kinds, running, scheduled
from orchestrator.config import KINDS, flat_config, load_config
from orchestrator.continuation import check_continuation
from orchestrator.run_dir import RunDir

DEMO = Path("configs/demo.yaml")


@dataclass(frozen=True, kw_only=True)
class Inner:
    steps: int = scheduled(3)
    shares: dict[str, float] = scheduled({})
    seed: int = identity(1)


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    parts: dict[str, Inner] = field(default_factory=dict)
    timeout_s: float = running(1.0)


def test_kinds_are_found_in_nested_configurations_and_below_settings_that_are_dicts() -> None:
    known = kinds(Outer)
    assert known == {
        "inner.steps": Kind.SCHEDULE,
        "inner.shares": Kind.SCHEDULE,
        "inner.seed": Kind.IDENTITY,
        "parts.*.steps": Kind.SCHEDULE,
        "parts.*.shares": Kind.SCHEDULE,
        "parts.*.seed": Kind.IDENTITY,
        "timeout_s": Kind.RUNNING,
    }
    assert kind_of(known, "inner.shares.math") is Kind.SCHEDULE
    assert kind_of(known, "parts.math.seed") is Kind.IDENTITY
    assert kind_of(known, "parts.math.shares.code") is Kind.SCHEDULE
    assert kind_of(known, "unheard.of") is Kind.IDENTITY


def test_a_list_or_dict_that_is_a_default_is_not_shared() -> None:
    Inner().shares["math"] = 1.0
    assert Inner().shares == {}


def test_a_setting_without_a_kind_is_refused_by_its_name() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Forgotten:
        steps: int = 3

    with pytest.raises(
        ValueError, match=r"steps declares no kind: write identity\(3\), scheduled\(3\) or running\(3\)"
    ):
        kinds(Forgotten)


def test_every_setting_of_a_run_declares_its_kind() -> None:
    flat = flat_config(load_config(DEMO, []))
    assert {kind_of(KINDS, key) for key in flat} == set(Kind)
    for key, kind in {
        "seed": Kind.IDENTITY,
        "model.fresh.hidden_size": Kind.IDENTITY,
        "envs.math.data": Kind.IDENTITY,
        "rl.loss.surrogate": Kind.IDENTITY,
        "rl.optim.learning_rate": Kind.SCHEDULE,
        "rl.steps": Kind.SCHEDULE,
        "envs.math.share": Kind.SCHEDULE,
        "rl.timeout_s": Kind.RUNNING,
        "rl.checkpoint_every": Kind.RUNNING,
        "rl.max_failures": Kind.RUNNING,
        "rollout.limits.timeout_s": Kind.RUNNING,
        "rollout.engine.memory_gib": Kind.RUNNING,
        "learner.threads": Kind.RUNNING,
        "tracking.uri": Kind.RUNNING,
    }.items():
        assert kind_of(KINDS, key) is kind, key


def test_a_run_goes_on_with_what_made_it_stop_changed_but_not_as_another_run(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "demo")
    folder.open()
    check_continuation(load_config(DEMO, []), folder)
    with_checkpoint(folder, "rl")
    raised = ["rl.timeout_s=900", "rollout.engine.memory_gib=2", "rl.checkpoint_every=5", "rl.optim.learning_rate=1e-5"]
    check_continuation(load_config(DEMO, raised), folder)
    with pytest.raises(ValueError, match=r"rl.loss.advantage: loo -> grpo"):
        check_continuation(load_config(DEMO, ["rl.loss.advantage=grpo"]), folder)
    folder.close()

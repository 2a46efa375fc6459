"""Known keys, and hints for unknown ones."""

from typing import Any

import pytest

from temper.envs.core.bounds import SettingError
from temper.envs.core.setting import field_hints
from temper.orchestrator.config.keys import PEER_KEYS, dotted_keys
from temper.orchestrator.config.text import overridden
from temper.orchestrator.pipeline.config import SCHEMA, check_keys


def test_keys_of_other_projects_lead_to_present_ones() -> None:
    there = {*dotted_keys(field_hints(SCHEMA))}
    assert {new.replace("NAME", "*") for new in PEER_KEYS.values()} <= there
    assert not {*PEER_KEYS} & there


@pytest.mark.parametrize(
    ("override", "key", "wanted"),
    [
        ("rl.max_lagg=2", "rl.max_lagg", "rl.max_lag"),
        ("rl.learning_rate=1", "rl.learning_rate", "rl.optim.learning_rate"),
        ("sft.learning_rate=1", "sft.learning_rate", "sft.optim.learning_rate"),
        ("learning_rate=1", "learning_rate", "rl.optim.learning_rate"),
        ("rl.num_generations=8", "rl.num_generations", "rl.group_size"),
        ("sft.max_steps=9", "sft.max_steps", "sft.steps"),
        ("rl.beta=0", "rl.beta", "rl.loss.kl_coefficient"),
        ("grpo.num_prompts_per_step=8", "grpo", "rl.groups_per_step"),
        ("actor_rollout_ref.rollout.n=8", "actor_rollout_ref", "rl.group_size"),
        ("actor_rollout_ref.actor.optim.lr=1", "actor_rollout_ref", "rl.optim.learning_rate"),
        ("algorithm.adv_estimator=grpo", "algorithm", "rl.loss.advantage"),
        ("sft.lr=1", "sft.lr", "sft.optim.learning_rate"),
        ("learner.max_lag=2", "learner.max_lag", "rl.max_lag"),
        ("envs.mine.shar=1", "envs.mine.shar", "envs.mine.share"),
        ("rl-2.stepz=1", "rl-2.stepz", "rl-2.steps"),
        ("stages=[{rl: {name: more, stepz: 1}}]", "more.stepz", "more.steps"),
    ],
)
def test_an_unknown_key_is_answered_with_the_right_one(override: str, key: str, wanted: str) -> None:
    with pytest.raises(SettingError, match=f"{wanted}(\\?| or |$)") as found:
        check_keys(overridden({}, [override]))
    assert found.value.key == key


@pytest.mark.parametrize(
    "given",
    [
        {"envs": {"mine": {"options": {"any": 1}}}, "rl-2": {"steps": 1}, "eval-rl": {"tasks": 1}},
        {"stages": [{"rl": {"name": "more", "steps": 1}}], "more": {"group_size": 4}},
        {"rl": None, "model": "${oc.env:MODEL}", "learner": {"lora": None}},
    ],
)
def test_known_keys_pass(given: dict[str, Any]) -> None:
    check_keys(given)


def test_settings_over_an_unread_run_may_be_of_any_stage() -> None:
    check_keys({"more": {"steps": 1}}, is_complete=False)
    with pytest.raises(SettingError, match=r"rl\.stepz"):
        check_keys({"rl": {"stepz": 1}}, is_complete=False)

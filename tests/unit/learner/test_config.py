from pathlib import Path
from typing import get_args

import pytest

from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses import advantages, kl, surrogates
from temper.learner.losses import config as loss_config
from temper.learner.losses.config import LossConfig
from temper.orchestrator.config.schema import typed
from temper.orchestrator.pipeline.config import load_config

DEMO = Path(__file__).parents[3] / "configs" / "demo.yaml"


@pytest.mark.parametrize(
    ("kind", "field", "value", "named"),
    [
        (
            OptimConfig,
            "schedule",
            "cosinus",
            "schedule=cosinus: .*'constant', 'linear' or 'cosine'",
        ),
        (OptimConfig, "learning_rate", 0.0, "optim.learning_rate=0.0"),
        (OptimConfig, "learning_rate", float("nan"), "^learning_rate=nan"),
        (OptimConfig, "beta2", 1.0, "optim.beta2=1.0"),
        (OptimConfig, "ema_decay", 1.0, "optim.ema_decay=1.0"),
        (LossConfig, "advantage", "loo", "rloo, dr_grpo, grpo"),
        (LossConfig, "beta", 0.0, "loss.beta=0.0"),
        (LossConfig, "dual_clip", 0.5, "above 1, or 0"),
        (LossConfig, "importance_floor", 3.0, "loss.importance_cap=2.0"),
        (LossConfig, "objective", "sft", "'policy', 'nll', 'distill' or 'dpo'"),
        (LossConfig, "surrogate", "trpo", "ppo, gspo, cispo, decoupled, reinforce"),
        (LossConfig, "old_policy", "engine", "'trainer' or 'rollout'"),
        (LossConfig, "aggregation", "constant", "loss.constant_length=0 with loss.aggregation=constant"),
        (LossConfig, "constant_length", 96, "loss.constant_length=96 with loss.aggregation=token"),
        (LossConfig, "clip_low", 1.5, "loss.clip_low=1.5"),
        (LossConfig, "clip_high", -0.1, "loss.clip_high=-0.1"),
        (LossConfig, "importance_cap", -1.0, "loss.importance_cap=-1.0"),
        (LossConfig, "token_range", [5.0, 0.5], "loss.token_range=.*the lowest and the highest"),
        (LossConfig, "sequence_range", [1.0], "loss.sequence_range=.*the lowest and the highest"),
        (LossConfig, "negative_guard", -0.5, "loss.negative_guard=-0.5"),
        (LossConfig, "kl", "k4", "'k1', 'k2' or 'k3'"),
        (LossConfig, "kl_in", "advantage", "'loss' or 'reward'"),
        (LossConfig, "kl_coefficient", -0.1, "loss.kl_coefficient=-0.1"),
        (LossConfig, "entropy_bonus", float("nan"), "^entropy_bonus=nan"),
        (LearnerConfig, "zero_stage", 4, "0, 1, 2 or 3"),
        (LearnerConfig, "ranks", 0, "learner.ranks=0"),
        (LearnerConfig, "offload", "disk", "'none', 'cpu' or 'nvme'"),
        (LearnerConfig, "recompute", "some", "'none', 'selective' or 'full'"),
        (LearnerConfig, "wire_dtype", "int8", "'float32', 'bfloat16' or 'float16'"),
        (LearnerConfig, "bf16", True, "set learner.zero_stage to 1, 2 or 3"),
        (LearnerConfig, "sequence_parallel", 2, "learner.ranks=1 is not divisible by learner.sequence_parallel=2"),
    ],
)
def test_an_impossible_setting_is_an_error_that_names_it_and_what_is_right(kind, field, value, named):
    with pytest.raises(ValueError, match=named):
        typed(kind, {field: value})


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["rl.loss.beta=0"], "^rl.loss.beta=0.0: must be above 0"),
        (["sft.optim.beta1=2"], "^sft.optim.beta1=2.0"),
        (["learner.lora.rank=-1"], "^learner.lora.rank=-1"),
        (
            ["sft.optim.kind=muon", "learner={zero_stage: 3, offload: nvme, offload_dir: /fast}"],
            "^sft.optim.kind=muon .* or sft.optim.kind=adamw",
        ),
        (
            ["sft.optim={kind: adamw, ema_decay: 0.9}", "learner={zero_stage: 3, offload: nvme, offload_dir: /fast}"],
            "^sft.optim.ema_decay=0.9 .* or sft.optim.ema_decay=0",
        ),
        (
            ["sft.optim={kind: adamw, ema_decay: 0.9}", "learner={zero_stage: 1, bf16: true, lora: {rank: 4}}"],
            "^sft.optim.ema_decay=0.9 .* set learner.bf16=false",
        ),
        (["model.fresh.pattern=X"], "^model.fresh.pattern='X'"),
        (["stages=[{rl: {name: rl_tools, loss: {beta: 0}}}]"], "rl_tools: rl_tools.loss.beta=0.0"),
        (
            ["rl.loss={kl: k1, kl_coefficient: 0.1}"],
            "^rl.loss.kl=k1 with rl.loss.kl_in=loss: .* rl.loss.kl=k2, or rl.loss.kl_in=reward",
        ),
    ],
)
def test_a_message_names_the_key_as_it_stands_in_the_file(overrides: list[str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        load_config(DEMO, ["name=x", *overrides])


@pytest.mark.parametrize("rounding", ["learner={zero_stage: 1, bf16: true}", "rollout.engine.dtype=bfloat16"])
def test_gspo_against_an_engine_in_bfloat16_is_refused_with_its_remedy(rounding: str) -> None:
    gspo = ["name=x", rounding, "rl.loss.surrogate=gspo", "rl.loss.aggregation=sequence"]
    with pytest.raises(ValueError, match=r"^rl\.loss\.surrogate=gspo .*rl\.loss\.old_policy=trainer"):
        load_config(DEMO, gspo)
    load_config(DEMO, [*gspo, "rl.loss.old_policy=trainer", "rl.epochs=2"])
    load_config(DEMO, [*gspo, "rl.loss.clip_low=0.01", "rl.loss.clip_high=0.01"])


def test_the_names_of_the_configuration_are_those_of_the_functions():
    for name in surrogates.SURROGATES:
        assert loss_config.LossConfig(surrogate=name, aggregation="sequence").surrogate == name
    for name in advantages.ADVANTAGES:
        assert loss_config.LossConfig(advantage=name).advantage == name
    assert set(kl.ESTIMATES) == set(get_args(loss_config.KlEstimate))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kl": "k1", "kl_coefficient": 0.1}, "loss.kl=k1 with loss.kl_in=loss: .* set loss.kl=k2"),
        (
            {"surrogate": "gspo", "aggregation": "sequence", "dual_clip": 3.0},
            "loss.dual_clip=3.0 with loss.surrogate=gspo",
        ),
        ({"surrogate": "reinforce", "clip_high": 0.3}, "loss.clip_high=0.3 with loss.surrogate=reinforce"),
        ({"surrogate": "decoupled", "importance_cap": 2.0}, "loss.importance_cap=2.0 with loss.surrogate=decoupled"),
        ({"old_policy": "rollout", "importance_cap": 2.0}, "loss.importance_cap=2.0 with loss.old_policy=rollout"),
        ({"token_range": [0.5, 5.0], "importance_floor": 0.1}, "loss.importance_floor=0.1"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(settings, named):
    with pytest.raises(ValueError, match=named):
        LossConfig(**settings)


@pytest.mark.parametrize("other", [{}, {"aggregation": "constant", "constant_length": 9}])
def test_gspo_with_another_aggregation_than_its_own_is_refused(other):
    with pytest.raises(ValueError, match="loss.surrogate=gspo .*loss.aggregation=sequence"):
        LossConfig(surrogate="gspo", **other)


def test_k1_is_a_reward_and_a_metric():
    assert LossConfig(kl="k1", kl_coefficient=0.1, kl_in="reward").needs_reference
    assert not LossConfig(kl="k1").needs_reference


def test_what_is_decoupled_needs_a_policy_between_trainer_and_rollout():
    with pytest.raises(ValueError, match="surrogate=decoupled with loss.old_policy=rollout"):
        LossConfig(surrogate="decoupled", old_policy="rollout")

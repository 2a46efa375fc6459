from pathlib import Path
from typing import get_args

import pytest
from support.refusals import refuses

from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses import advantages, kl, surrogates
from temper.learner.losses import config as loss_config
from temper.learner.losses.config import LossConfig
from temper.orchestrator.config.schema import to_settings
from temper.orchestrator.pipeline.config import load_config

DEMO = Path(__file__).parents[3] / "configs" / "demo.yaml"
AVERAGED = "sft.optim={kind: adamw, ema_decay: 0.9}"
ON_DISK = "learner={zero_stage: 3, offload: nvme, offload_dir: /fast}"
GSPO = {"surrogate": "gspo"}
ROUNDED_ADAPTERS = "learner={zero_stage: 1, bf16: true, lora: {rank: 4}}"


@pytest.mark.parametrize(
    ("kind", "field", "value", "named"),
    [
        (OptimConfig, "schedule", "cosinus", "schedule=cosinus"),
        (OptimConfig, "learning_rate", 0.0, "optim.learning_rate=0.0"),
        (OptimConfig, "learning_rate", float("nan"), "learning_rate=nan"),
        (OptimConfig, "beta2", 1.0, "optim.beta2=1.0"),
        (OptimConfig, "ema_decay", 1.0, "optim.ema_decay=1.0"),
        (LossConfig, "advantage", "loo", "loss.advantage='loo'"),
        (LossConfig, "beta", 0.0, "loss.beta=0.0"),
        (LossConfig, "dual_clip", 0.5, "loss.dual_clip=0.5"),
        (LossConfig, "importance_floor", 3.0, "loss.importance_cap=2.0"),
        (LossConfig, "objective", "sft", "objective=sft"),
        (LossConfig, "surrogate", "trpo", "loss.surrogate='trpo'"),
        (LossConfig, "old_policy", "engine", "old_policy=engine"),
        (LossConfig, "aggregation", "constant", "loss.constant_length=0 with loss.aggregation=constant"),
        (LossConfig, "constant_length", 96, "loss.constant_length=96 with loss.aggregation=token"),
        (LossConfig, "clip_low", 1.5, "loss.clip_low=1.5"),
        (LossConfig, "clip_high", -0.1, "loss.clip_high=-0.1"),
        (LossConfig, "importance_cap", -1.0, "loss.importance_cap=-1.0"),
        (LossConfig, "token_range", [5.0, 0.5], "loss.token_range=[5.0, 0.5]"),
        (LossConfig, "sequence_range", [1.0], "loss.sequence_range=[1.0]"),
        (LossConfig, "negative_guard", -0.5, "loss.negative_guard=-0.5"),
        (LossConfig, "kl", "k4", "kl=k4"),
        (LossConfig, "kl_in", "advantage", "kl_in=advantage"),
        (LossConfig, "kl_coefficient", -0.1, "loss.kl_coefficient=-0.1"),
        (LossConfig, "entropy_bonus", float("nan"), "entropy_bonus=nan"),
        (LearnerConfig, "zero_stage", 4, "zero_stage=4"),
        (LearnerConfig, "ranks", 0, "learner.ranks=0"),
        (LearnerConfig, "offload", "disk", "offload=disk"),
        (LearnerConfig, "recompute", "some", "recompute=some"),
        (LearnerConfig, "wire_dtype", "int8", "wire_dtype=int8"),
        (LearnerConfig, "bf16", True, "learner.bf16=true with learner.zero_stage=0"),
        (LearnerConfig, "logit_tokens", 0, "learner.logit_tokens=0"),
        (LearnerConfig, "sequence_parallel", 2, "learner.ranks=1 is not divisible by learner.sequence_parallel=2"),
    ],
)
def test_an_impossible_setting_is_named(kind, field, value, named):
    with refuses(named):
        to_settings(kind, {field: value})


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["rl.loss.beta=0"], ["rl.loss.beta=0.0"]),
        (["sft.optim.beta1=2"], ["sft.optim.beta1=2.0"]),
        (["learner.lora.rank=-1"], ["learner.lora.rank=-1"]),
        (["sft.optim.kind=muon", ON_DISK], ["sft.optim.kind=muon", "sft.optim.kind=adamw"]),
        ([AVERAGED, ON_DISK], ["sft.optim.ema_decay=0.9", "or sft.optim.ema_decay=0"]),
        ([AVERAGED, ROUNDED_ADAPTERS], ["sft.optim.ema_decay=0.9", "learner.bf16=false"]),
        (["model.fresh.pattern=X"], ["model.fresh.pattern='X'"]),
        (["stages=[{rl: {name: rl_tools, loss: {beta: 0}}}]"], ["rl_tools.loss.beta=0.0", "rl_tools:"]),
        (["rl.loss={kl: k1, kl_coefficient: 0.1}"], ["rl.loss.kl=k1", "rl.loss.kl=k2", "rl.loss.kl_in=reward"]),
    ],
)
def test_a_message_names_the_key_as_it_stands_in_the_file(overrides: list[str], named: list[str]) -> None:
    with refuses(*named):
        load_config(DEMO, ["name=x", *overrides])


@pytest.mark.parametrize("rounding", ["learner={zero_stage: 1, bf16: true}", "rollout.engine.dtype=bfloat16"])
def test_gspo_against_a_bfloat16_engine_is_refused(rounding: str) -> None:
    gspo = ["name=x", rounding, "rl.loss.surrogate=gspo", "rl.loss.aggregation=sequence"]
    with refuses("rl.loss.surrogate=gspo", "rl.loss.old_policy=trainer"):
        load_config(DEMO, gspo)
    load_config(DEMO, [*gspo, "rl.loss.old_policy=trainer", "rl.epochs=2"])
    load_config(DEMO, [*gspo, "rl.loss.clip_low=0.01", "rl.loss.clip_high=0.01"])


def test_names_of_settings_are_those_of_functions():
    for name in surrogates.SURROGATES:
        assert loss_config.LossConfig(surrogate=name, aggregation="sequence").surrogate == name
    for name in advantages.ADVANTAGES:
        assert loss_config.LossConfig(advantage=name).advantage == name
    assert set(kl.ESTIMATES) == set(get_args(loss_config.KlEstimate))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kl": "k1", "kl_coefficient": 0.1}, ["loss.kl=k1", "loss.kl_in=loss", "loss.kl=k2"]),
        ({**GSPO, "aggregation": "sequence", "dual_clip": 3.0}, ["loss.dual_clip=3.0", "loss.surrogate=gspo"]),
        ({"surrogate": "reinforce", "clip_high": 0.3}, ["loss.clip_high=0.3", "loss.surrogate=reinforce"]),
        ({"surrogate": "decoupled", "importance_cap": 2.0}, ["loss.importance_cap=2.0", "loss.surrogate=decoupled"]),
        ({"old_policy": "rollout", "importance_cap": 2.0}, ["loss.importance_cap=2.0", "loss.old_policy=rollout"]),
        ({"token_range": [0.5, 5.0], "importance_floor": 0.1}, ["loss.importance_floor=0.1"]),
        ({"surrogate": "decoupled", "old_policy": "rollout"}, ["loss.surrogate=decoupled", "loss.old_policy=rollout"]),
        (GSPO, ["loss.surrogate=gspo", "loss.aggregation=sequence"]),
        (
            {**GSPO, "aggregation": "constant", "constant_length": 9},
            ["loss.surrogate=gspo", "loss.aggregation=sequence"],
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, named):
    with refuses(*named):
        LossConfig(**settings)


def test_k1_is_a_reward_and_a_metric():
    assert LossConfig(kl="k1", kl_coefficient=0.1, kl_in="reward").needs_reference
    assert not LossConfig(kl="k1").needs_reference

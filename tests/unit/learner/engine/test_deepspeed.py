"""Undocumented parts of DeepSpeed in use. A missing name means that a new version needs a review."""

import inspect
from importlib.metadata import version

import pytest
import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero.partition_parameters import Init
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from temper.learner.config import LearnerConfig, OptimConfig, ZeroStage
from temper.learner.engine.deepspeed_engine import _config as deepspeed_config

LOOKED_AT = "0.19.8"
PRIVATE = {
    BF16_Optimizer: (
        "fp32_groups_flat_partition",
        "_hp_optimizer_states_linked",
        "_lazy_init_hp_params_optimizer_state",
    ),
    DeepSpeedZeroOptimizer: (
        "single_partition_of_fp32_groups",
        "averaged_gradients",
        "_hp_optimizer_states_linked",
        "_lazy_init_hp_params_optimizer_state",
    ),
    DeepSpeedZeroOptimizer_Stage3: ("fp32_partitioned_groups_flat",),
    Init: ("ds_tensor", "ds_shape", "ds_numel"),
    DeepSpeedEngine: ("basic_optimizer", "overflow", "_global_grad_norm"),
}
"""The names that `learner/engine` uses or provides, by the class that has them."""


def test_the_version_of_deepspeed_was_reviewed():
    assert version("deepspeed") == LOOKED_AT, "look at the names below in the new version, then name it here"


@pytest.mark.parametrize("kind", PRIVATE, ids=lambda kind: kind.__name__)
def test_deepspeed_has_the_private_names_that_the_engine_uses(kind):
    source = inspect.getsource(kind)
    assert [name for name in PRIVATE[kind] if name not in source] == []


@pytest.mark.parametrize(("stage", "ranks", "overlaps"), [(3, 4, True), (3, 1, False), (2, 4, False), (1, 4, False)])
def test_stage_3_sends_between_ranks_while_they_compute(stage: ZeroStage, ranks: int, overlaps: bool):
    learner = LearnerConfig(zero_stage=stage, ranks=ranks, bf16=True)
    built = deepspeed_config(torch.nn.Linear(2, 2), optim=OptimConfig(), learner=learner)
    assert DeepSpeedConfig(built).zero_config.overlap_comm is overlaps

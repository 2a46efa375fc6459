import pytest

from learner.config import LearnerConfig, LossConfig, OptimConfig


@pytest.mark.parametrize(
    ("config", "field", "value", "named"),
    [
        (OptimConfig, "schedule", "cosinus", "constant, linear, cosine"),
        (OptimConfig, "learning_rate", 0.0, "optim.learning_rate=0.0"),
        (OptimConfig, "learning_rate", float("nan"), "optim.learning_rate=nan"),
        (OptimConfig, "beta2", 1.0, "optim.beta2=1.0"),
        (LossConfig, "advantage", "rloo", "loo, mean, grpo"),
        (LossConfig, "dual_clip", 0.5, "above 1, or 0"),
        (LossConfig, "importance_floor", 3.0, "loss.importance_cap=2.0"),
        (LossConfig, "objective", "sft", "policy, nll"),
        (LearnerConfig, "zero_stage", 4, "0, 1, 2 or 3"),
        (LearnerConfig, "ranks", 0, "learner.ranks=0"),
        (LearnerConfig, "wire_dtype", "int8", "float32, bfloat16, float16"),
        (LearnerConfig, "bf16", True, "set zero_stage to 1, 2 or 3"),
    ],
)
def test_an_impossible_setting_is_an_error_that_names_it_and_what_is_right(config, field, value, named):
    with pytest.raises(ValueError, match=named):
        config(**{field: value})

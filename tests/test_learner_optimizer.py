import math

import pytest
import torch

from learner.config import OptimConfig
from learner.optimizer import GuardedAdamW, learning_rate, parameter_groups


def rates(optim: OptimConfig, *, total_steps: int) -> list[float]:
    return [learning_rate(step, optim=optim, total_steps=total_steps) for step in range(total_steps)]


def test_the_learning_rate_rises_in_the_warm_up_and_then_follows_its_schedule():
    constant = OptimConfig(learning_rate=1.0, warmup_steps=2)
    assert rates(constant, total_steps=4) == [0.5, 1.0, 1.0, 1.0]
    linear = OptimConfig(learning_rate=1.0, warmup_steps=2, schedule="linear")
    assert rates(linear, total_steps=7) == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])
    cosine = OptimConfig(learning_rate=1.0, warmup_steps=0, schedule="cosine", final_fraction=0.2)
    assert rates(cosine, total_steps=3) == pytest.approx([1.0, 0.6, 0.2])


def test_the_learning_rate_stays_at_its_end_beyond_the_last_step():
    linear = OptimConfig(learning_rate=1.0, warmup_steps=0, schedule="linear", final_fraction=0.1)
    assert learning_rate(50, optim=linear, total_steps=10) == pytest.approx(0.1)


def test_weight_decay_spares_vectors():
    model = torch.nn.Linear(2, 3)
    matrices, vectors = parameter_groups(model, weight_decay=0.1)
    assert (matrices["params"], matrices["weight_decay"]) == ([model.weight], 0.1)
    assert (vectors["params"], vectors["weight_decay"]) == ([model.bias], 0.0)


def test_a_gradient_that_is_not_finite_changes_nothing():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = GuardedAdamW([{"params": [parameter]}], optim=OptimConfig(), guard=True)
    parameter.grad = torch.tensor([1.0, math.inf])
    optimizer.step()
    assert optimizer.overflow
    assert parameter.tolist() == [1.0, 1.0]
    assert not optimizer.state[parameter]


def test_the_whole_gradient_is_clipped_to_its_norm():
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = GuardedAdamW([{"params": [parameter]}], optim=OptimConfig(grad_clip=1.0), guard=True)
    parameter.grad = torch.tensor([3.0, 4.0])
    optimizer.step()
    assert not optimizer.overflow
    assert parameter.grad.tolist() == pytest.approx([0.6, 0.8], abs=1e-5)

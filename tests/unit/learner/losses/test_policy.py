import math

import pytest
import torch

from temper.learner.losses.corrections import Correction
from temper.learner.losses.policy import PolicyTerms, nll_loss, policy_loss
from temper.learner.losses.surrogates import Clip
from temper.learner.models.logprobs import token_entropies, token_logprobs

NAN = float("nan")
PLAIN = PolicyTerms(clip=Clip(low=0.2, high=0.28), correction=Correction(cap=2.0))
GUARDED = PolicyTerms(correction=Correction(cap=2.0, error_guard=2.0))


def tensor(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows)


def test_token_logprobs_are_zero_for_the_first_token():
    logits_BTV = torch.tensor([[[0.0, math.log(3.0)], [math.log(4.0), 0.0], [7.0, 9.0]]])
    assert token_logprobs(logits_BTV, torch.tensor([[0, 1, 0]]))[0].tolist() == pytest.approx(
        [0.0, math.log(0.75), math.log(0.8)]
    )


def test_token_logprobs_of_bfloat16_are_in_float32():
    assert token_logprobs(torch.zeros(1, 2, 3, dtype=torch.bfloat16), torch.tensor([[0, 1]])).dtype == torch.float32


def test_entropies_are_those_of_the_tokens_distributions():
    logits_BTV = torch.tensor([[[0.0, math.log(3.0)], [5.0, 5.0], [7.0, 9.0]]])
    quarter = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert token_entropies(logits_BTV)[0].tolist() == pytest.approx([0.0, quarter, math.log(2.0)])


def test_nll_is_the_weighted_sum_over_trained_tokens():
    loss = nll_loss(tensor([-1.0, -2.0, -4.0]), tensor([0.0, 1.0, 0.5]))
    assert loss.total.item() == pytest.approx(4.0)
    assert loss.sums["weight"].item() == pytest.approx(1.5)


def test_policy_loss_with_old_logprobs_by_hand():
    # ratios 1.5 and 0.5, importance weights exp(0) and exp(1) truncated to 2
    logprobs = tensor([0.0, -1.0 + math.log(1.5), -2.0 + math.log(0.5)])
    loss = policy_loss(
        logprobs,
        tensor([0.0, 1.0, 1.0]),
        tensor([0.0, 1.0, 1.0]),
        tensor([NAN, -1.0, -3.0]),
        terms=PLAIN,
        old_BT=tensor([NAN, -1.0, -2.0]),
    )
    assert loss.total.item() == pytest.approx(-1.28 - 2.0 * 0.5)
    assert loss.sums["is_weight"].item() == pytest.approx(1.0 + math.e)
    assert loss.sums["is_weight_truncated"].item() == 1.0
    assert loss.sums["mismatch_abs"].item() == pytest.approx(1.0)
    assert loss.sums["clipped"].item() == 1.0


def test_untrained_nan_reaches_neither_loss_nor_gradient():
    logprobs = tensor([NAN, -1.0, NAN]).requires_grad_()
    loss = policy_loss(
        logprobs,
        tensor([0.0, 1.0, 0.0]),
        tensor([NAN, 1.0, math.inf]),
        tensor([NAN, -1.0, NAN]),
        terms=PLAIN,
    )
    loss.total.backward()
    assert loss.total.item() == pytest.approx(-1.0)
    assert all(math.isfinite(value.item()) for value in loss.sums.values())
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == [0.0, -1.0, 0.0]


def test_likelihood_reads_no_untrained_entry():
    logprobs = tensor([NAN, -1.0]).requires_grad_()
    loss = nll_loss(logprobs, tensor([0.0, 1.0]))
    loss.total.backward()
    assert logprobs.grad is not None
    assert (loss.total.item(), logprobs.grad[0].tolist()) == (1.0, [0.0, -1.0])


def test_a_trained_token_without_a_logprob_makes_the_loss_nan():
    loss = policy_loss(
        tensor([0.0, -1.0]), tensor([0.0, 1.0]), tensor([0.0, 1.0]), tensor([NAN, NAN]),
        terms=GUARDED,
    )  # fmt: skip
    assert math.isnan(loss.total.item())


def test_huge_log_ratios_stay_finite():
    loss = policy_loss(tensor([0.0, -1.0]), tensor([0.0, 1.0]), tensor([0.0, 1.0]), tensor([NAN, -1e6]), terms=PLAIN)
    assert loss.total.item() == pytest.approx(-2.0)
    assert loss.sums["is_weight"].item() == pytest.approx(math.exp(20.0))


def test_a_weightless_batch_has_no_loss_and_a_zero_gradient():
    logprobs = tensor([-1.0, -2.0]).requires_grad_()
    zeros = torch.zeros(1, 2)
    policy_loss(logprobs, zeros, zeros, tensor([NAN, NAN]), terms=GUARDED).total.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[0.0, 0.0]]

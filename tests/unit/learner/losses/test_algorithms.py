"""The algorithms against numbers worked out by hand, in double precision. Names: t for a token of the only sequence."""

import math
from functools import partial

import pytest
import torch

from temper.learner.batches.micro_batches import build_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.losses.config import LossConfig
from temper.learner.losses.corrections import Correction, MaskReason
from temper.learner.losses.dpo import dpo_loss
from temper.learner.losses.kl import distillation_advantages, k1, k2, k3
from temper.learner.losses.policy import KlPenalty, Loss, PolicyTerms, policy_loss
from temper.learner.losses.surrogates import SURROGATES, Clip, Surrogate, Tokens

NAN = float("nan")
FREE = Clip(low=1.0, high=math.inf)
NONE = Correction()


def tensor(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def surrogate(
    name: str, *, ratios: list[float], advantages: list[float], clip: Clip, old: float = -1.0
) -> tuple[Surrogate, torch.Tensor]:
    """A surrogate over one fully trained sequence with these ratios to log pi_old = `old`, and log pi."""
    logprobs_BT = tensor([old + math.log(ratio) for ratio in ratios]).requires_grad_()
    tokens = Tokens(
        logprobs_BT=logprobs_BT,
        old_BT=torch.full_like(logprobs_BT, old).detach(),
        advantages_BT=tensor(advantages),
        trained_BT=torch.ones_like(logprobs_BT, dtype=torch.bool),
    )
    return SURROGATES[name].function(tokens, clip=clip), logprobs_BT


def gradient(total: torch.Tensor, of: torch.Tensor) -> list[float]:
    total.sum().backward()
    assert of.grad is not None
    return of.grad[0].tolist()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [
        (1.5, 1.0, -1.28, 0.0),  # clipped above
        (1.1, 1.0, -1.1, -1.1),  # inside
        (0.5, 1.0, -0.5, -0.5),  # a fall of a good token is not clipped
        (0.5, -1.0, 0.8, 0.0),  # clipped below
        (2.0, -1.0, 2.0, 2.0),  # a rise of a bad token is not clipped
        (5.0, -1.0, 3.0, 0.0),  # up to the dual clip
    ],
)
@pytest.mark.parametrize("name", ["ppo", "decoupled"])
def test_ppo_clips_gains_and_the_dual_clip_bounds_bad_tokens(name, ratio, advantage, expected, slope):
    clip = Clip(low=0.2, high=0.28, dual=3.0)
    result, logprobs = surrogate(name, ratios=[ratio], advantages=[advantage], clip=clip)
    assert result.loss_BT.item() == pytest.approx(expected)
    assert result.clipped_BT.item() is (slope == 0.0)
    assert gradient(result.loss_BT, logprobs) == pytest.approx([slope])


def test_gspo_clips_the_geometric_mean_of_ratios():
    # s = sqrt(1.2 * 0.9) = sqrt(1.08) = 1.0392; d s_t / d log pi_t = s
    inside, logprobs = surrogate("gspo", ratios=[1.2, 0.9], advantages=[2.0, 2.0], clip=Clip(low=0.1, high=0.1))
    s = math.sqrt(1.08)
    assert inside.loss_BT[0].tolist() == pytest.approx([-2 * s, -2 * s])
    assert gradient(inside.loss_BT / 2, logprobs) == pytest.approx([-s, -s])  # the mean over the sequence
    outside, logprobs = surrogate("gspo", ratios=[1.2, 0.9], advantages=[2.0, 2.0], clip=Clip(low=3e-4, high=4e-4))
    assert outside.loss_BT[0].tolist() == pytest.approx([-2.0008, -2.0008])
    assert outside.clipped_BT.all()
    assert gradient(outside.loss_BT, logprobs) == [0.0, 0.0]
    bad, _ = surrogate("gspo", ratios=[1.2, 0.9], advantages=[-1.0, -1.0], clip=Clip(low=3e-4, high=4e-4, dual=1.01))
    assert bad.loss_BT[0].tolist() == pytest.approx([s, s])  # has no dual clip


def test_the_ratio_of_a_sequence_is_over_its_trained_tokens():
    tokens = Tokens(
        logprobs_BT=tensor([0.0, -1.0, -1.0], [0.0, 0.0, 0.0]),
        old_BT=tensor([0.0, -1.5, -0.7], [0.0, 0.0, 0.0]),
        advantages_BT=torch.ones(2, 3, dtype=torch.float64),
        trained_BT=torch.tensor([[False, True, True], [False, False, False]]),
    )
    ratios = SURROGATES["gspo"].function(tokens, clip=FREE).ratio_BT
    assert ratios[0].tolist() == pytest.approx([math.exp(0.1)] * 3)  # (0.5 - 0.3) / 2
    assert ratios[1].tolist() == [1.0, 1.0, 1.0]


def test_cispo_bounds_weights_and_keeps_gradients():
    ratios, advantages = [9.0, 0.01, 2.0], [1.0, 1.0, -1.0]
    result, logprobs = surrogate("cispo", ratios=ratios, advantages=advantages, clip=Clip(low=1.0, high=4.0))
    logs = [-1 + math.log(ratio) for ratio in ratios]
    assert result.loss_BT[0].tolist() == pytest.approx([-5 * logs[0], -0.01 * logs[1], 2 * logs[2]])
    assert result.clipped_BT[0].tolist() == [True, False, False]
    assert gradient(result.loss_BT, logprobs) == pytest.approx([-5.0, -0.01, 2.0])


def test_reinforce_weighs_by_the_ratio_without_a_bound():
    result, logprobs = surrogate("reinforce", ratios=[9.0, 1.0], advantages=[1.0, -2.0], clip=Clip(low=0.2, high=0.2))
    assert result.loss_BT[0].tolist() == pytest.approx([-9.0, 2.0])
    assert not result.clipped_BT.any()
    assert gradient(result.loss_BT, logprobs) == pytest.approx([-9.0, 2.0])


def loss_of(
    goal: PolicyTerms, *, gaps: list[float], advantages: list[float] | None = None, **known: torch.Tensor
) -> Loss:
    """The policy loss of one sequence whose tokens have log pi = -1 and log pi - log mu = `gaps`, after an untrained one."""
    count = len(gaps)
    return policy_loss(
        tensor([NAN, *[-1.0] * count]),
        tensor([0.0, *[1.0] * count]),
        tensor([0.0, *(advantages or [1.0] * count)]),
        tensor([NAN, *[-1.0 - gap for gap in gaps]]),
        terms=goal,
        **known,
    )


@pytest.mark.parametrize(
    ("correction", "factors", "truncated"),
    [
        (NONE, [1, 1, 1, 1], 0),
        (Correction(cap=2.0), [0.1, 0.9, 2, 2], 2),
        (Correction(cap=2.0, floor=0.2), [0.2, 0.9, 2, 2], 3),
        (Correction(token_range=(0.5, 5.0)), [0, 0.9, 3, 0], 2),
        (Correction(cap=2.0, token_range=(0.5, 5.0)), [0, 0.9, 2, 0], 3),
    ],
)
def test_tokens_are_weighed_by_pi_over_mu_within_bounds(correction, factors, truncated):
    gaps = [math.log(w) for w in (0.1, 0.9, 3.0, 6.0)]
    loss = loss_of(PolicyTerms(surrogate="reinforce", clip=FREE, correction=correction), gaps=gaps)
    assert loss.total.item() == pytest.approx(-sum(factors))
    assert loss.sums["is_weight_truncated"].item() == truncated
    assert loss.sums["is_weight"].item() == pytest.approx(0.1 + 0.9 + 3.0 + 6.0)


def test_a_token_range_alone_is_icepops_rule():
    # M(w) = w where 0.5 <= w <= 5, else 0: Zhao et al., 2025
    gaps = [math.log(w) for w in (0.1, 0.9, 3.0, 4.9, 6.0)]
    icepop = PolicyTerms.of(LossConfig(token_range=[0.5, 5.0], error_guard=0.0))
    assert loss_of(icepop, gaps=gaps).total.item() == pytest.approx(-(0.9 + 3.0 + 4.9))
    capped = PolicyTerms.of(LossConfig(token_range=[0.5, 5.0], importance_cap=2.0, error_guard=0.0))
    assert loss_of(capped, gaps=gaps).total.item() == pytest.approx(-(0.9 + 2.0 + 2.0))


@pytest.mark.parametrize(
    ("correction", "gaps", "advantage", "kept"),
    [
        (Correction(error_guard=2.0), [0.8, -0.7], 1.0, False),  # exp(0.75) = 2.12
        (Correction(error_guard=2.0), [0.1, -1.2], 1.0, True),  # exp(0.65) = 1.92
        (Correction(sequence_range=(0.999, 1.002)), [0.8, -0.8], 1.0, True),  # exp(0) = 1
        (Correction(sequence_range=(0.999, 1.002)), [0.004, 0.002], 1.0, False),  # exp(0.003) = 1.003
        (Correction(sequence_range=(0.999, 1.002)), [-0.004, 0.0], 1.0, False),  # exp(-0.002) = 0.998
        (Correction(negative_guard=0.5), [-1.2, 0.0], -1.0, False),  # mean of log mu - log pi = 0.6
        (Correction(negative_guard=0.5), [-1.2, 0.0], 1.0, True),
        (Correction(negative_guard=0.5), [1.2, 0.0], -1.0, True),
        (Correction(negative_guard=0.5), [-0.8, 0.0], -1.0, True),  # 0.4
        (Correction(error_guard=2.0, negative_guard=0.5), [-1.1, 0.0], -1.0, False),  # exp(0.55) = 1.7, but 0.55
    ],
)
def test_sequences_are_left_out_as_a_whole_each_rule_by_itself(correction, gaps, advantage, kept):
    goal = PolicyTerms(surrogate="reinforce", clip=FREE, correction=correction)
    loss = loss_of(goal, gaps=gaps, advantages=[advantage] * 2)
    assert loss.total.item() == pytest.approx(-2 * advantage if kept else 0.0)
    assert loss.sums["guarded"].item() == (0.0 if kept else 2.0)


def test_only_the_sequence_that_breaks_a_rule_is_left_out():
    goal = PolicyTerms(surrogate="reinforce", clip=FREE, correction=Correction(error_guard=2.0))
    ones = torch.ones(2, 2, dtype=torch.float64)
    loss = policy_loss(0 * ones, ones, tensor([1.0, 1.0], [3.0, 3.0]), tensor([0.9, 0.9], [0.1, 0.1]), terms=goal)
    assert loss.total.item() == pytest.approx(-6.0)


@pytest.mark.parametrize(("old", "pi_minus_mu", "guarded"), [(-0.4, -0.6, 2.0), (-1.6, -0.4, 0.0)])
def test_the_negative_guard_compares_with_this_updates_policy(old, pi_minus_mu, guarded):
    goal = PolicyTerms(surrogate="reinforce", clip=FREE, correction=Correction(negative_guard=0.5))
    old_BT = tensor([NAN, old, old])  # log pi is -1: in the first row it fell since pi_old, in the second it rose
    loss = loss_of(goal, gaps=[pi_minus_mu] * 2, advantages=[-1.0, -1.0], old_BT=old_BT)
    assert loss.sums["guarded"].item() == guarded
    assert loss.terms is not None
    assert loss.terms.mask_reasons_BT[0].tolist() == [
        0,
        *[MaskReason.NEGATIVE_GUARD if guarded else MaskReason.NONE] * 2,
    ]


def test_the_divergence_is_paid_by_what_a_guard_leaves_out():
    goal = PolicyTerms(correction=Correction(negative_guard=0.5), kl=KlPenalty(estimate="k2", coefficient=0.5))
    loss = loss_of(goal, gaps=[-0.6, -0.6], advantages=[-1.0, -1.0], ref_BT=tensor([NAN, -3.0, -1.0]))
    assert loss.sums["guarded"].item() == 2.0
    assert loss.total.item() == pytest.approx(0.5 * 2.0)  # k2 of d = -2 is 2


def test_the_negative_guard_takes_turns_below_zero():
    goal = PolicyTerms(surrogate="reinforce", clip=FREE, correction=Correction(negative_guard=0.5))
    assert loss_of(goal, gaps=[-0.6, -0.6], advantages=[3.0, -5.0]).total.item() == pytest.approx(-3.0)


@pytest.mark.parametrize(
    "correction",
    [
        Correction(cap=2.0),
        Correction(token_range=(0.5, 5.0)),
        Correction(sequence_range=(0.9, 1.1)),
        Correction(error_guard=2.0),
        Correction(negative_guard=0.5),
    ],
)
def test_a_lost_logprob_is_hidden_by_no_correction(correction):
    # with a ratio against the engine the loss itself reads it; where nothing else does, a factor must
    goal = PolicyTerms(correction=correction, against_rollout=True)
    assert math.isnan(loss_of(goal, gaps=[0.0, NAN], advantages=[-1.0, -1.0]).total.item())


def test_decoupled_drops_tokens_with_weights_over_five():
    goal = PolicyTerms.of(LossConfig(surrogate="decoupled"))
    weights = [math.exp(0.5), 4.0, 6.0]  # of the trainer that formed the batch; the guard is for another test
    logs = [math.log(weight) for weight in weights]
    loss = policy_loss(
        tensor([-1.0 + math.log(1.5), -1.0, -1.0]),
        tensor([1.0, 1.0, 1.0]),
        tensor([1.0, 1.0, 1.0]),
        tensor([-1.0 - log for log in logs]),
        terms=PolicyTerms(
            surrogate=goal.surrogate,
            clip=goal.clip,
            correction=Correction(cap=goal.correction.cap, token_range=goal.correction.token_range),
        ),
        old_BT=tensor([-1.0, -1.0, -1.0]),
    )
    assert loss.total.item() == pytest.approx(-(weights[0] * 1.28 + 4.0))


def test_against_the_rollout_no_token_is_weighed_twice():
    goal = PolicyTerms.of(LossConfig(old_policy="rollout", error_guard=0.0))
    loss = loss_of(goal, gaps=[math.log(1.5), math.log(1.1), math.log(0.9)])
    assert loss.total.item() == pytest.approx(-(1.28 + 1.1 + 0.9))
    assert loss.sums["ratio"].item() == pytest.approx(1.5 + 1.1 + 0.9)
    assert loss.sums["is_weight_truncated"].item() == 0.0
    masked = PolicyTerms.of(LossConfig(old_policy="rollout", error_guard=0.0, token_range=[0.95, 1.2]))
    assert loss_of(masked, gaps=[math.log(1.5), math.log(1.1), math.log(0.9)]).total.item() == pytest.approx(-1.1)


sequence = partial(LossConfig, aggregation="sequence")
"""The one aggregation that every surrogate goes with."""


def test_gspo_and_cispo_are_against_the_rollout_by_default():
    usual = {name: PolicyTerms.of(sequence(surrogate=name)).against_rollout for name in SURROGATES}
    assert usual == {"ppo": False, "gspo": True, "cispo": True, "decoupled": False, "reinforce": False}
    assert not PolicyTerms.of(sequence(surrogate="gspo", old_policy="trainer")).against_rollout


@pytest.mark.parametrize(
    ("surrogate", "low", "high"),
    [("ppo", 0.2, 0.28), ("gspo", 3e-4, 4e-4), ("cispo", 1.0, 4.0), ("decoupled", 0.2, 0.28)],
)
def test_each_surrogate_has_its_own_usual_bounds(surrogate, low, high):
    usual = PolicyTerms.of(sequence(surrogate=surrogate)).clip
    assert (usual.low, usual.high) == (low, high)
    told = PolicyTerms.of(sequence(surrogate=surrogate, clip_high=0.5)).clip
    assert (told.low, told.high) == (low, 0.5)


def test_the_default_loss_is_its_formula_bit_for_bit():
    draw = torch.Generator().manual_seed(0)
    logprobs = -3 * torch.rand(4, 9, generator=draw)
    weights = (torch.rand(4, 9, generator=draw) > 0.4).float()
    advantages = torch.randn(4, 1, generator=draw).expand(4, 9)
    spread = torch.tensor([0.1, 0.5, 1.5, 4.0])[:, None]
    behaviour = logprobs + spread * torch.randn(4, 9, generator=draw)
    ours, written = logprobs.clone().requires_grad_(), logprobs.clone().requires_grad_()

    gap = written.detach() - behaviour
    ratio = (written - written.detach()).exp()
    bounded = torch.minimum(ratio * advantages, ratio.clamp(1 - 0.2, 1 + 0.28) * advantages)
    bounded = torch.where(advantages < 0, torch.maximum(bounded, 3.0 * advantages), bounded)
    error = (gap.abs() * weights).sum(-1) / weights.sum(-1)
    kept = torch.where((error.exp() > 2.0)[:, None], 0.0, weights)
    expected = (kept * gap.exp().clamp(0.0, 2.0) * -bounded).sum()

    loss = policy_loss(ours, weights, advantages, behaviour, terms=PolicyTerms.of(LossConfig()))
    assert PolicyTerms() == PolicyTerms.of(LossConfig())
    assert torch.equal(loss.total, expected)
    assert 0 < kept.sum() < weights.sum()
    assert gradient(loss.total, ours) == gradient(expected, written)


@pytest.mark.parametrize(("estimate", "value"), [(k1, -0.5), (k2, 0.125), (k3, math.exp(0.5) - 1.5)])
def test_estimates_of_the_divergence_at_d_of_one_half(estimate, value):
    assert estimate(tensor([-1.5]), tensor([-1.0])).item() == pytest.approx(value)
    assert estimate(tensor([-1.0]), tensor([-1.0])).item() == 0.0


def test_k2_has_the_gradient_of_the_divergence_and_k1_none():
    """Over all outcomes of a distribution of three, each as often as it is sampled."""
    logits = tensor([0.3, -0.8, 0.5]).requires_grad_()
    reference = tensor([1.0, 0.2, -0.4]).log_softmax(-1)
    pi = logits.log_softmax(-1)
    exact = gradient((pi.exp() * (pi - reference)).sum(), logits)

    def sampled(estimate) -> list[float]:
        logits.grad = None
        logs = logits.log_softmax(-1)
        return gradient((logs.exp().detach() * estimate(logs, reference)).sum(), logits)

    assert sampled(k2) == pytest.approx(exact)
    assert sampled(k1) == pytest.approx([0.0, 0.0, 0.0])
    assert max(map(abs, exact)) > 0.1


@pytest.mark.parametrize(
    ("name", "value", "slope"),
    [("k1", -0.5, 1.0), ("k2", 0.125, -0.5), ("k3", math.exp(0.5) - 1.5, 1 - math.exp(0.5))],
)
def test_the_divergence_is_a_term_of_each_trained_token(name, value, slope):
    logprobs = tensor([NAN, -1.5]).requires_grad_()
    loss = policy_loss(
        logprobs,
        tensor([0.0, 2.0]),
        tensor([0.0, 0.0]),
        tensor([NAN, -1.5]),
        terms=PolicyTerms(kl=KlPenalty(estimate=name, coefficient=0.1)),
        ref_BT=tensor([NAN, -1.0]),
    )
    assert loss.total.item() == pytest.approx(0.2 * value)
    assert loss.sums["kl"].item() == pytest.approx(2 * value)
    assert gradient(loss.total, logprobs) == pytest.approx([0.0, 0.2 * slope])


def test_in_rewards_tokens_pay_for_the_divergence_to_come():
    # k1 = log pi - log ref: 0.4, -0.1, 0.3 on the trained tokens; still to come from each: 0.6, 0.2, 0.3
    goal = PolicyTerms(surrogate="reinforce", clip=FREE, correction=NONE)
    paying = PolicyTerms(
        surrogate="reinforce", clip=FREE, correction=NONE, kl=KlPenalty(estimate="k1", coefficient=0.5, in_reward=True)
    )
    ref = tensor([NAN, -1.4, -0.9, -1.3])
    assert loss_of(goal, gaps=[0.0, 0.0, 0.0]).total.item() == pytest.approx(-3.0)
    loss = loss_of(paying, gaps=[0.0, 0.0, 0.0], ref_BT=ref)
    assert loss.total.item() == pytest.approx(-(3.0 - 0.5 * (0.6 + 0.2 + 0.3)))
    assert loss.sums["kl"].item() == pytest.approx(0.6)


def test_the_entropy_is_a_bonus():
    entropy = tensor([NAN, 0.3, 0.5]).requires_grad_()
    goal = PolicyTerms(correction=NONE, entropy_bonus=0.1)
    loss = loss_of(goal, gaps=[0.0, 0.0], advantages=[0.0, 0.0], entropy_BT=entropy)
    assert loss.total.item() == pytest.approx(-0.08)
    assert loss.sums["policy_entropy"].item() == pytest.approx(0.8)
    assert gradient(loss.total, entropy) == pytest.approx([0.0, -0.1, -0.1])


def test_distillation_pulls_towards_the_teacher():
    logprobs = tensor([-1.0, -3.0]).requires_grad_()
    advantages = distillation_advantages(logprobs, tensor([-2.5, -1.0]))
    assert advantages[0].tolist() == [-1.5, 2.0]
    assert not advantages.requires_grad


def test_dpo_is_the_logistic_loss_of_the_margin():
    # margins 0.5 ((-1 + 2) - (-4 + 3)) = 1 and 0.5 ((-3 + 1) - (-1 + 1)) = -1
    chosen = torch.tensor([-1.0, -3.0], dtype=torch.float64).requires_grad_()
    others = [torch.tensor(values, dtype=torch.float64) for values in ([-4.0, -1.0], [-2.0, -1.0], [-3.0, -1.0])]
    loss = dpo_loss(chosen, *others, beta=0.5)
    assert loss.total.item() == pytest.approx(math.log(1 + math.exp(-1)) + math.log(1 + math.exp(1)))
    assert (loss.sums["margin"].item(), loss.sums["accuracy"].item(), loss.sums["weight"].item()) == (0.0, 1.0, 2.0)
    loss.total.backward()
    assert chosen.grad is not None
    assert chosen.grad.tolist() == pytest.approx([-0.5 / (1 + math.e), -0.5 * math.e / (1 + math.e)])


def test_constant_aggregation_divides_by_sequences_times_length():
    rows = [TrainingSample.supervised(ids=range(n), trained_T=[False, *[True] * (n - 1)]) for n in (5, 3)]
    rows.append(TrainingSample.supervised(ids=(1, 2), trained_T=(False, False)))
    batch = build_batch(rows, ranks=1, micro_batch_tokens=99, pad_id=0, aggregation="constant", constant_length=10)
    assert batch.denominator == 30.0
    assert sum(float(micro.weights_BT.sum()) for micro in batch.micro_batches[0]) == 6.0

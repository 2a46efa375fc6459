"""Losses, weights, masks and advantages against verl's functions, each on 1,000 random batches in float64."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from judges.packages import VERL, installed

from temper.learner.losses.advantages import dr_grpo, grpo, normalise_over_batch, rloo
from temper.learner.losses.corrections import Correction
from temper.learner.losses.kl import ESTIMATES, penalised_advantages
from temper.learner.losses.policy import KlPenalty, PolicyTerms, policy_loss
from temper.learner.losses.surrogates import Clip

BATCHES = 1000
TOLERANCE = 1e-6
OFF = Correction()
TIGHT = Clip(low=0.2, high=0.2)


def judges(run: str) -> pytest.MarkDecorator:
    return pytest.mark.judges(suite="verl", run=run)


@dataclass(frozen=True, kw_only=True)
class Verl:
    algorithms: Any
    corrections: Any
    config: Any


@pytest.fixture(scope="module")
def modules() -> Verl:
    sys.path.append(str(installed(*VERL)))
    from verl.trainer.ppo import core_algos, rollout_corr_helper
    from verl.workers.config import ActorConfig

    return Verl(algorithms=core_algos, corrections=rollout_corr_helper, config=ActorConfig)


@pytest.fixture
def verl(record_property: Any, request: pytest.FixtureRequest) -> Verl:
    record_property("version", VERL[0].split("==")[1])
    modules: Verl = request.getfixturevalue("modules")
    return modules


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Log-probabilities of pi, pi_old, mu and a reference, advantages, the mask with holes, and a random number."""

    pi_BT: torch.Tensor
    old_BT: torch.Tensor
    mu_BT: torch.Tensor
    ref_BT: torch.Tensor
    entropy_BT: torch.Tensor
    advantages_BT: torch.Tensor
    mask_BT: torch.Tensor
    mode: str
    number: float

    @property
    def weights_BT(self) -> torch.Tensor:
        """Loss weights of the aggregation, which sum to the mean that `build_batch` and its denominator define."""
        tokens_B1 = self.mask_BT.sum(-1, keepdim=True)
        scale = {
            "token-mean": self.mask_BT.sum(),
            "seq-mean-token-mean": tokens_B1 * len(tokens_B1),
            "seq-mean-token-sum-norm": torch.tensor(self.mask_BT.numel()),
        }
        return self.mask_BT / scale[self.mode]


def random_batch(seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    rows, width = (int(torch.randint(2, most, (), generator=draw)) for most in (7, 12))

    def noise() -> torch.Tensor:
        return torch.randn(rows, width, generator=draw, dtype=torch.float64)

    mask_BT = (torch.rand(rows, width, generator=draw) > 0.3).double()
    mask_BT[:, 0] = 1.0
    pi_BT = -noise().abs() - 0.1
    spread_B1 = torch.tensor([1e-4, 0.1, 0.5, 2.0], dtype=torch.float64)[torch.randint(4, (rows, 1), generator=draw)]
    old_BT = pi_BT + spread_B1 * noise()
    modes = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")
    return Batch(
        pi_BT=pi_BT.requires_grad_(),
        old_BT=old_BT.detach(),
        mu_BT=(old_BT + spread_B1 * noise()).detach(),
        ref_BT=(pi_BT + 0.5 * noise()).detach(),
        entropy_BT=noise().abs().requires_grad_(),
        advantages_BT=noise()[:, :1].expand(rows, width),
        mask_BT=mask_BT,
        mode=modes[seed % 3],
        number=float(torch.rand((), generator=draw)),
    )


Side = tuple[torch.Tensor, torch.Tensor]


def gradient(loss: torch.Tensor, batch: Batch) -> Side:
    inputs = (batch.pi_BT, batch.entropy_BT)
    parts = torch.autograd.grad(loss, inputs, allow_unused=True)
    zeros = torch.zeros_like(batch.pi_BT)
    return loss.detach(), torch.stack([zeros if part is None else part for part in parts])


def ours(batch: Batch, surrogate: str, clip: Clip, **terms: Any) -> Side:
    total = policy_loss(
        batch.pi_BT,
        batch.weights_BT,
        batch.advantages_BT,
        batch.mu_BT,
        terms=PolicyTerms(surrogate=surrogate, clip=clip, **{"correction": OFF} | terms),
        old_BT=None if surrogate == "reinforce" else batch.old_BT,
        ref_BT=batch.ref_BT if "kl" in terms else None,
        entropy_BT=batch.entropy_BT if "entropy_bonus" in terms else None,
    ).total
    return gradient(total, batch)


def theirs(verl: Verl, name: str, batch: Batch, clip: Clip = TIGHT, **given: Any) -> Side:
    return gradient(verl_loss(verl, name, batch, clip, **given), batch)


def verl_loss(
    verl: Verl, name: str, batch: Batch, clip: Clip, *, old_BT: Any = None, mask_BT: Any = None, weights_BT: Any = None
) -> torch.Tensor:
    """The loss by verl. With `mask_BT` its denominators still count the whole batch."""
    config = verl.config(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio_low=clip.low,
        clip_ratio_high=clip.high,
        clip_ratio_c=clip.dual or 1e9,
    )
    config.global_batch_info.update(batch_num_tokens=batch.mask_BT.sum(), global_batch_size=len(batch.mask_BT))
    known = {"reinforce": verl.algorithms.compute_policy_loss_reinforce}
    function = known.get(name) or verl.algorithms.get_policy_loss_fn(name)
    loss: torch.Tensor = function(
        batch.old_BT if old_BT is None else old_BT,
        batch.pi_BT,
        batch.advantages_BT,
        batch.mask_BT if mask_BT is None else mask_BT,
        batch.mode,
        config,
        weights_BT,
    )[0]
    return loss


def compare(
    record: Any,
    sides: Callable[[Batch], tuple[Side, Side]],
    *,
    why: str = "",
    values: bool = True,
    undefined_by_verl: int = 0,
) -> None:
    """Hold both sides against each other on all batches: gradients, and values too by default.

    On `undefined_by_verl` batches verl divides by zero. They count as different on the page.
    """
    differing, undefined = [], 0
    for seed in range(BATCHES):
        try:
            first, second = sides(random_batch(seed))
        except ZeroDivisionError:
            undefined += 1
            continue
        pairs = list(zip(first, second, strict=True))[0 if values else 1 :]
        if not all(torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE) for one, other in pairs):
            differing.append(seed)
    record("passed", f"{BATCHES - len(differing) - undefined:,}")
    record("differs", len(differing) + undefined)
    record(
        "why", f"verl raises ZeroDivisionError if it drops all tokens of a batch ({undefined})" if undefined else why
    )
    assert not differing
    assert undefined == undefined_by_verl


def clip_of(batch: Batch, *, dual: float = 0.0) -> Clip:
    return Clip(low=0.1 + 0.3 * batch.number, high=0.4 - 0.3 * batch.number, dual=dual)


def rollout_weights(verl: Verl, batch: Batch, threshold: float | str, *, pi_BT: torch.Tensor) -> torch.Tensor:
    """verl's weights pi / mu of the tokens."""
    weights_BT, _ = verl.corrections.compute_rollout_correction_weights(
        pi_BT - batch.mu_BT, batch.mask_BT, "token", threshold
    )
    return torch.as_tensor(weights_BT)


@pytest.mark.parametrize(
    "dual",
    [
        pytest.param(0.0, marks=judges("PPO and DAPO's clip-higher: loss and gradient")),
        pytest.param(1.5, marks=judges("dual clip: loss and gradient")),
    ],
)
def test_ppo_agrees(verl, record_property, dual):
    def sides(batch: Batch) -> tuple[Side, Side]:
        clip = clip_of(batch, dual=dual)
        return ours(batch, "ppo", clip), theirs(verl, "vanilla", batch, clip)

    compare(record_property, sides)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("gspo", marks=judges("GSPO: loss and gradient")),
        pytest.param("cispo", marks=judges("CISPO: loss and gradient")),
    ],
)
def test_the_ratio_against_the_rollout_agrees(verl, record_property, name):
    def sides(batch: Batch) -> tuple[Side, Side]:
        clip = clip_of(batch)
        return ours(batch, name, clip, against_rollout=True), theirs(verl, name, batch, clip, old_BT=batch.mu_BT)

    compare(record_property, sides)


@judges("REINFORCE with truncated weights: gradient")
def test_reinforce_agrees(verl, record_property):
    def sides(batch: Batch) -> tuple[Side, Side]:
        weights_BT = rollout_weights(verl, batch, 2.0, pi_BT=batch.pi_BT.detach())
        first = ours(batch, "reinforce", Clip(low=1.0, high=9.0), correction=Correction(cap=2.0))
        return first, theirs(verl, "reinforce", batch, weights_BT=weights_BT)

    compare(record_property, sides, values=False, why="values differ by design: -w A here, -w A log pi in verl")


@pytest.mark.parametrize(
    ("correction", "threshold"),
    [
        pytest.param(Correction(cap=2.0), 2.0, marks=judges("TIS weights on PPO: loss and gradient")),
        pytest.param(Correction(token_range=(0.5, 2)), "0.5_2", marks=judges("IcePop on PPO: loss and gradient")),
    ],
)
def test_token_weights_agree(verl, record_property, correction, threshold):
    def sides(batch: Batch) -> tuple[Side, Side]:
        weights_BT = rollout_weights(verl, batch, threshold, pi_BT=batch.old_BT)
        first = ours(batch, "ppo", clip_of(batch), correction=correction)
        return first, theirs(verl, "vanilla", batch, clip_of(batch), weights_BT=weights_BT)

    compare(record_property, sides, undefined_by_verl=3 if correction.token_range else 0)


@judges("masks by a sequence's mean ratio (seq_mean_k1) on PPO: loss and gradient")
def test_sequence_masks_agree(verl, record_property):
    def sides(batch: Batch) -> tuple[Side, Side]:
        mask_BT, _ = verl.corrections.compute_rollout_rejection_mask(
            batch.old_BT - batch.mu_BT, batch.mask_BT, "seq_mean_k1", f"{1 / 1.25}_{1 / 0.9}"
        )
        first = ours(batch, "ppo", clip_of(batch), correction=Correction(sequence_range=(0.9, 1.25)))
        return first, theirs(verl, "vanilla", batch, clip_of(batch), mask_BT=mask_BT)

    compare(record_property, sides, why="verl bounds mu / pi, the inverse. Denominators count masked tokens here only")


@pytest.mark.parametrize(
    "estimate",
    [
        pytest.param(name, marks=judges(f"KL estimate {name} in the loss, entropy bonus: loss and gradient"))
        for name in ("k1", "k2", "k3")
    ],
)
def test_divergence_and_entropy_agree(verl, record_property, estimate):
    def sides(batch: Batch) -> tuple[Side, Side]:
        kl = KlPenalty(estimate=estimate, coefficient=0.1)
        loss = verl_loss(verl, "vanilla", batch, clip_of(batch))
        kl_BT = verl.algorithms.kl_penalty(batch.pi_BT, batch.ref_BT, estimate)
        for term_BT, coefficient in ((kl_BT, 0.1), (batch.entropy_BT, -0.05)):
            loss = loss + coefficient * verl.algorithms.agg_loss(
                term_BT, batch.mask_BT, batch.mode, global_batch_size=len(batch.mask_BT)
            )
        return ours(batch, "ppo", clip_of(batch), kl=kl, entropy_bonus=0.05), gradient(loss, batch)

    compare(
        record_property, sides, why="verl caps k3 at 10 a token, Temper its log-ratio at 20" if estimate == "k3" else ""
    )


@judges("REINFORCE++ returns with the divergence in the reward")
def test_returns_agree(verl, record_property):
    def sides(batch: Batch) -> tuple[Side, Side]:
        kl_BT = ESTIMATES["k1"](batch.old_BT, batch.ref_BT)
        trained_BT = batch.mask_BT > 0
        first = penalised_advantages(batch.advantages_BT, kl_BT, trained_BT, coefficient=0.1) * batch.mask_BT
        last_B1 = batch.mask_BT.shape[1] - 1 - batch.mask_BT.flip(-1).argmax(-1, keepdim=True)
        rewards_BT = torch.zeros_like(batch.mask_BT).scatter(1, last_B1, batch.advantages_BT)
        rewards_BT = rewards_BT - 0.1 * verl.algorithms.kl_penalty(batch.old_BT, batch.ref_BT, "k1") * batch.mask_BT
        _, returns_BT = verl.algorithms.compute_reinforce_plus_plus_outcome_advantage(
            rewards_BT, batch.mask_BT, config=SimpleNamespace(gamma=1.0)
        )
        return (first, first), (returns_BT, returns_BT)

    compare(record_property, sides)


GROUPS = 3


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An advantage here and in verl, and whether a deviation per group or batch divides it."""

    ours: Callable[[list[list[float]], list[list[int]]], list[list[float]]]
    name: str
    per: str = ""


def each(rule: Callable[[list[float]], list[float]]) -> Callable[[list[list[float]], Any], list[list[float]]]:
    return lambda rewards_NG, _: [rule(rewards_G) for rewards_G in rewards_NG]


SAMPLE = "times the deviation: verl divides by the sample deviation (n - 1), Temper by the population's (n)"
EPSILON = 1e-6
"""Both add it to a group's deviation, and Temper to a batch's."""
VARIANCE_EPSILON = 1e-8
"""verl adds it to a batch's variance."""
RULES = [
    pytest.param(Rule(ours=each(rloo), name="rloo"), marks=judges("RLOO advantages")),
    pytest.param(Rule(ours=each(dr_grpo), name="grpo"), marks=judges("Dr. GRPO advantages")),
    pytest.param(Rule(ours=each(grpo), name="grpo", per="group"), marks=judges("GRPO advantages")),
    pytest.param(
        Rule(ours=normalise_over_batch, name="reinforce_plus_plus", per="batch"),
        marks=judges("REINFORCE++ advantages"),
    ),
    pytest.param(
        Rule(
            ours=lambda rewards_NG, tokens_NG: normalise_over_batch([dr_grpo(own) for own in rewards_NG], tokens_NG),
            name="reinforce_plus_plus_baseline",
            per="batch",
        ),
        marks=judges("REINFORCE++ advantages with a baseline"),
    ),
]


@pytest.mark.parametrize("rule", RULES)
def test_advantages_agree(verl, record_property, rule):
    """Advantages are compared after the deviation by which each side divides is multiplied back."""

    def sides(batch: Batch) -> tuple[Side, Side]:
        draw = torch.Generator().manual_seed(int(batch.number * 1e9))
        size = 2 + int(batch.number * 7)
        rewards_B = torch.rand(GROUPS * size, generator=draw, dtype=torch.float64)
        mask_BT = (torch.rand(len(rewards_B), 9, generator=draw) > 0.4).double()
        mask_BT[:, -1] = 1.0
        groups = np.repeat(np.arange(GROUPS), size)
        rewards_BT = torch.zeros_like(mask_BT)
        rewards_BT[:, -1] = rewards_B
        options = {"norm_adv_by_std_in_grpo": rule.per == "group"} if rule.name == "grpo" else {}
        found_BT, _ = verl.algorithms.get_adv_estimator_fn(rule.name)(
            token_level_rewards=rewards_BT,
            response_mask=mask_BT,
            index=groups,
            config=SimpleNamespace(gamma=1.0),
            **options,
        )
        found_B = found_BT[:, -1]
        rewards_NG = rewards_B.view(GROUPS, size).tolist()
        tokens_NG = mask_BT.sum(-1).int().view(GROUPS, size).tolist()
        own_B = torch.tensor(rule.ours(rewards_NG, tokens_NG), dtype=torch.float64).flatten()
        if rule.per == "group":
            for values_B, correction in ((own_B, 0), (found_B, 1)):
                deviation_N1 = rewards_B.view(GROUPS, size).std(-1, correction=correction, keepdim=True)
                values_B.view(GROUPS, size).mul_(deviation_N1 + EPSILON)
        elif rule.per:
            tokens_B, values_B = mask_BT.sum(-1), rewards_B.view(GROUPS, size)
            if rule.name.endswith("baseline"):
                values_B = values_B - values_B.mean(-1, keepdim=True)
            total, values_B = tokens_B.sum(), values_B.flatten()
            variance = (tokens_B * (values_B - (tokens_B * values_B).sum() / total) ** 2).sum() / total
            own_B = own_B * (variance.sqrt() + EPSILON)
            found_B = found_B * (variance * total / (total - 1) + VARIANCE_EPSILON).sqrt()
        return (own_B, own_B), (found_B, found_B)

    compare(record_property, sides, why=SAMPLE if rule.per else "")

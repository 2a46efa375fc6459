"""Batches of pairs: the content of a micro-batch, and a loss independent of the split."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from temper.learner.batches.micro_batches import MicroBatch, TrainBatch
from temper.learner.batches.pairs import Pair, build_pair_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.losses.dpo import pair_loss
from temper.learner.models.logprobs import token_logprobs

PAD = 0
BETA = 0.3
LENGTHS = ((9, 4), (3, 12), (6, 6), (2, 5), (7, 1))
"""Tokens of the preferred answer and of the other one."""


def pair(rng: random.Random, prompt: int, chosen: int, rejected: int) -> Pair:
    head = [rng.randrange(3, 250) for _ in range(prompt)]
    made = []
    for length in (chosen, rejected):
        tail = [rng.randrange(3, 250) for _ in range(length)]
        made.append(TrainingSample.supervised(ids=head + tail, trained_T=[False] * prompt + [True] * length))
    return Pair(chosen=made[0], rejected=made[1])


def pairs() -> list[Pair]:
    rng = random.Random(1)
    return [pair(rng, 4, chosen, rejected) for chosen, rejected in LENGTHS]


def batch(*, ranks: int, tokens: int) -> TrainBatch:
    return build_pair_batch(pairs(), ranks=ranks, micro_batch_tokens=tokens, pad_id=PAD)


def real(micro_batch: MicroBatch) -> bool:
    return bool(micro_batch.weights_BT.any())


def gradient(loss: torch.Tensor, model: PreTrainedModel) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def answer_logprob(model: PreTrainedModel, sequence: TrainingSample) -> torch.Tensor:
    """log pi of an answer, one sequence at a time, by transformers and torch alone."""
    ids_1T = torch.tensor([sequence.ids.tolist()])
    logs_TV = model(input_ids=ids_1T).logits[0].log_softmax(-1)
    start = sequence.first_trained
    return sum(logs_TV[place - 1, sequence.ids[place]] for place in range(start, len(sequence.ids)))


def plain(model: PreTrainedModel, reference: PreTrainedModel) -> tuple[torch.Tensor, list[float]]:
    """The mean loss over the pairs as the paper writes it, and each pair's margin."""
    margins = []
    for one in pairs():
        with torch.no_grad():
            known = answer_logprob(reference, one.chosen) - answer_logprob(reference, one.rejected)
        margins.append(BETA * (answer_logprob(model, one.chosen) - answer_logprob(model, one.rejected) - known))
    losses = [torch.log1p(torch.exp(-margin)) for margin in margins]
    return torch.stack(losses).mean(), [margin.item() for margin in margins]


def through(
    model: PreTrainedModel, reference: PreTrainedModel, made: TrainBatch
) -> tuple[torch.Tensor, dict[str, float]]:
    """The mean loss over a batch's pairs, micro-batch by micro-batch on every rank, and its sums."""
    total, sums = torch.zeros(()), dict.fromkeys(("weight", "loss", "margin", "accuracy"), 0.0)
    for micro_batch in (micro for share in made.micro_batches for micro in share):
        ids_RT = torch.from_numpy(micro_batch.ids_BT)
        with torch.no_grad():
            ref_RT = token_logprobs(reference(input_ids=ids_RT).logits, ids_RT)
        logprobs_RT = token_logprobs(model(input_ids=ids_RT).logits, ids_RT)
        loss = pair_loss(logprobs_RT, torch.from_numpy(micro_batch.weights_BT), ref_RT, beta=BETA)
        total = total + loss.total
        sums = {name: value + loss.sums[name].item() for name, value in sums.items()}
    return total / made.denominator, sums


@pytest.mark.parametrize(("ranks", "tokens"), [(1, 10**6), (1, 40), (2, 1), (3, 10**6)])
def test_a_batch_has_the_plain_loss_however_it_is_spread(llamas, ranks, tokens):
    loss, sums = through(llamas[0], llamas[1], batch(ranks=ranks, tokens=tokens))
    found = gradient(loss, llamas[0])
    expected, margins = plain(*llamas)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert torch.allclose(found, gradient(expected, llamas[0]), rtol=0.0, atol=1e-6)
    assert found.abs().max() > 1e-3
    assert sums["weight"] == len(LENGTHS)
    assert sums["margin"] == pytest.approx(sum(margins), abs=1e-5)
    assert sums["accuracy"] == sum(margin > 0 for margin in margins)
    assert 0 < sums["accuracy"] < len(LENGTHS)


def test_a_pair_of_weight_0_has_a_gradient_of_zeros():
    logprobs = torch.full((2, 2), -1.0, requires_grad=True)
    loss = pair_loss(logprobs, torch.zeros(2, 2), torch.zeros(2, 2), beta=0.1)
    loss.total.backward()
    assert {name: value.item() for name, value in loss.sums.items()} == dict.fromkeys(
        ("weight", "loss", "margin", "accuracy"), 0.0
    )
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_answers_of_a_pair_are_neighbours_within_the_budget():
    made = batch(ranks=1, tokens=40)
    seen = []
    for micro_batch in made.micro_batches[0]:
        assert micro_batch.ids_BT.size <= 40
        for chosen, rejected in zip(micro_batch.ids_BT[0::2], micro_batch.ids_BT[1::2], strict=True):
            assert chosen[:4].tolist() == rejected[:4].tolist()
            seen.append((int(np.count_nonzero(chosen)) - 4, int(np.count_nonzero(rejected)) - 4))
    assert sorted(seen) == sorted(LENGTHS)
    assert (made.denominator, made.samples) == (5.0, 10)
    assert made.tokens == sum(8 + chosen + rejected for chosen, rejected in LENGTHS)
    assert made.trained_tokens == sum(map(sum, LENGTHS))


def test_ranks_get_pairs_evenly_and_what_fills_up_has_no_weight():
    made = batch(ranks=2, tokens=1)  # every pair alone
    assert [len(share) for share in made.micro_batches] == [3, 3]
    assert [sum(map(real, share)) for share in made.micro_batches] == [3, 2]
    filler = made.micro_batches[1][-1]
    assert filler.ids_BT.shape == (2, 2)


def cut(sequence: TrainingSample) -> TrainingSample:
    return TrainingSample.supervised(ids=sequence.ids[:3], trained_T=sequence.trained_T[:3])


@pytest.mark.parametrize(
    "lost",
    [
        lambda one: Pair(chosen=cut(one.chosen), rejected=one.rejected),
        lambda one: Pair(chosen=one.chosen, rejected=cut(one.rejected)),
    ],
)
def test_a_pair_that_lost_an_answer_is_left_out(lost: Callable[[Pair], Pair]):
    first, *others = pairs()
    made = build_pair_batch([lost(first), *others], ranks=1, micro_batch_tokens=10**6, pad_id=PAD)
    assert (made.denominator, made.samples) == (4.0, 8)
    few = build_pair_batch([lost(first), others[0]], ranks=2, micro_batch_tokens=10**6, pad_id=PAD)
    assert [sum(map(real, share)) for share in few.micro_batches] == [1, 0]
    assert few.micro_batches[1][0].ids_BT.shape == (2, 2)
    assert few.denominator == 1.0
    none = build_pair_batch([lost(first)], ranks=2, micro_batch_tokens=10**6, pad_id=PAD)
    assert (none.micro_batches, none.trained_tokens) == (((), ()), 0)
